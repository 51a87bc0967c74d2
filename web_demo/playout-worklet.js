// The audio thread of playout: a thin cover for `PlayoutDesk`.

import { PlayoutDesk } from "./playout-desk.js";

class PlayoutProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.desk = new PlayoutDesk(sampleRate, (report) => this.port.postMessage(report));
    this.port.onmessage = ({ data }) => this.desk.onMessage(data);
  }

  process(inputs, [[output]]) {
    this.desk.render(output);
    return true;
  }
}

registerProcessor("playout", PlayoutProcessor);

// A jitter buffer that takes messages and gives reports: what runs in the audio thread.

import { JitterBuffer } from "./jitter-buffer.js";

const REPORT_SAMPLES = 960;

export class PlayoutDesk {
  // `report(figures)` is called some 50 times a second while there is something to tell.
  constructor(rateHz, report) {
    this.buffer = new JitterBuffer(rateHz);
    this.report = report;
    this.isTapped = false;
    this.nSinceReport = 0;
    this.peak = 0;
    this.tapped = [];
  }

  onMessage(message) {
    const { buffer } = this;
    if (message.type === "start") buffer.start(message.responseId);
    if (message.type === "push" && message.responseId === buffer.responseId) buffer.push(message.pcm);
    if (message.type === "finish" && message.responseId === buffer.responseId) buffer.finish();
    if (message.type === "tap") this.isTapped = true;
    if (message.type === "cut") {
      buffer.cut();
      this.#tell(true);
    }
  }

  render(output) {
    const before = this.buffer.state;
    this.buffer.render(output);
    for (const sample of output) this.peak = Math.max(this.peak, Math.abs(sample));
    if (this.isTapped) this.tapped.push(output.slice());
    this.nSinceReport += output.length;
    if (before !== this.buffer.state || this.nSinceReport >= REPORT_SAMPLES) this.#tell(before !== "idle");
  }

  #tell(isNews) {
    if (isNews || this.isTapped) {
      this.report({ ...this.buffer.figures(), peak: this.peak, tapped: this.tapped });
    }
    this.nSinceReport = 0;
    this.peak = 0;
    this.tapped = [];
  }
}

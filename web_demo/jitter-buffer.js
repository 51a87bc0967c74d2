// Holds decoded audio of one response until it is due. Pure: no clock, no browser; the audio thread
// calls `render`, everything else is called between two renders.
//
//   idle --start--> filling --enough, or complete--> playing --empty--> filling (an underrun)
//                                                    playing --complete and empty--> idle
//
// What is held before the first sample grows with every underrun and shrinks again over responses
// without one. Where sound stops or resumes without being an end, it fades.

const START_S = 0.08;
const GROWTH_S = 0.04;
const RELIEF_S = 0.01;
const MAX_TARGET_S = 0.5;
const FADE_S = 0.006;

export class JitterBuffer {
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.fadeSamples = Math.round(FADE_S * rateHz);
    this.targetS = START_S;
    this.state = "idle";
    this.#empty();
    this.tail = new Float32Array(0); // what is fading out after a cut
    this.tailAt = 0;
  }

  // A new response; of an old one nothing more is heard.
  start(responseId) {
    this.cut();
    this.#empty();
    this.responseId = responseId;
    this.state = "filling";
  }

  push(pcm) {
    if (this.state === "idle" || pcm.length === 0) return;
    this.blocks.push(pcm);
    this.nHeld += pcm.length;
  }

  // Everything has been pushed.
  finish() {
    this.isComplete = true;
  }

  // Silence, after a fade of a few milliseconds. What was held is forgotten.
  cut() {
    if (this.state === "playing" && this.gain > 0) {
      const tail = new Float32Array(Math.min(this.nHeld, this.fadeSamples));
      for (let i = 0; i < tail.length; i += 1) tail[i] = this.#next() * this.gain * (1 - (i + 1) / tail.length);
      this.tail = tail;
      this.tailAt = 0;
    }
    this.blocks = [];
    this.blockAt = 0;
    this.nHeld = 0;
    this.state = "idle";
  }

  // Fills `output` with the next samples.
  render(output) {
    if (this.state === "filling" && this.#isReady()) this.state = "playing";
    for (let i = 0; i < output.length; i += 1) output[i] = this.#sample() + this.#tailSample();
  }

  // What the page shows and reports.
  figures() {
    const { responseId, state, nPlayed, nUnderruns, targetS } = this;
    return { responseId, state, playedS: nPlayed / this.rateHz, heldS: this.nHeld / this.rateHz, nUnderruns, targetS };
  }

  #empty() {
    this.blocks = [];
    this.blockAt = 0;
    this.nHeld = 0;
    this.nPlayed = 0;
    this.nUnderruns = 0;
    this.gain = 0;
    this.isComplete = false;
  }

  #isReady() {
    return this.isComplete || this.nHeld >= this.targetS * this.rateHz;
  }

  #sample() {
    if (this.state !== "playing") return 0;
    if (this.nHeld === 0) {
      this.#runDry();
      return 0;
    }
    // Fades out over the last samples there are, unless they are the end; back in if more comes.
    const wanted = this.isComplete || this.nHeld > this.fadeSamples ? 1 : 0;
    const step = 1 / this.fadeSamples;
    this.gain += Math.max(-step, Math.min(step, wanted - this.gain));
    return this.#next() * this.gain;
  }

  #runDry() {
    if (this.isComplete) {
      this.state = "idle";
      if (this.nUnderruns === 0) this.targetS = Math.max(START_S, this.targetS - RELIEF_S);
      return;
    }
    this.nUnderruns += 1;
    this.targetS = Math.min(MAX_TARGET_S, this.targetS + GROWTH_S);
    this.gain = 0;
    this.state = "filling";
  }

  #next() {
    const block = this.blocks[0];
    const sample = block[this.blockAt];
    this.blockAt += 1;
    this.nHeld -= 1;
    this.nPlayed += 1;
    if (this.blockAt === block.length) {
      this.blocks.shift();
      this.blockAt = 0;
    }
    return sample;
  }

  #tailSample() {
    if (this.tailAt >= this.tail.length) return 0;
    this.tailAt += 1;
    return this.tail[this.tailAt - 1];
  }
}

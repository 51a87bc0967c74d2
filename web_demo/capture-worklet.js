// The audio thread of the microphone: cuts what it hears into frames of 20 ms at 48 kHz.

const RATE_HZ = 48000;
const FRAME_SAMPLES = 960;

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.frame = new Float32Array(FRAME_SAMPLES);
    this.nFilled = 0;
    // Some browsers open the microphone at its own rate only: between two samples, a straight line.
    this.step = sampleRate / RATE_HZ;
    this.position = 0; // of the next sample to give, in samples after `last`
    this.last = 0;
  }

  process([channels]) {
    if (channels.length === 0) return true;
    const mono = channels[0];
    for (let i = 0; i < mono.length; i += 1) {
      for (; this.position < 1; this.position += this.step) {
        this.#put(this.last + (mono[i] - this.last) * this.position);
      }
      this.position -= 1;
      this.last = mono[i];
    }
    return true;
  }

  #put(sample) {
    this.frame[this.nFilled] = sample;
    this.nFilled += 1;
    if (this.nFilled < FRAME_SAMPLES) return;
    this.port.postMessage(this.frame, [this.frame.buffer]);
    this.frame = new Float32Array(FRAME_SAMPLES);
    this.nFilled = 0;
  }
}

registerProcessor("capture", CaptureProcessor);

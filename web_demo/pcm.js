// PCM16, for browsers without Opus.

export const PCM_IN_RATE_HZ = 16000;
const STEP = 3; // from 48 kHz
const N_TAPS = 49;

export function floatsOf(payload) {
  const bytes = payload.slice(); // a copy, so that 16-bit samples are aligned
  return Float32Array.from(new Int16Array(bytes.buffer, 0, bytes.length >> 1), (sample) => sample / 32768);
}

export function bytesOf(pcm) {
  const pcm16 = Int16Array.from(pcm, (sample) => Math.max(-32768, Math.min(32767, Math.round(sample * 32767))));
  return new Uint8Array(pcm16.buffer);
}

// 48 kHz to 16 kHz, frame by frame: a low pass (Hann-windowed sinc) and every third sample of it.
export class Decimator {
  constructor() {
    this.past = new Float32Array(N_TAPS - 1);
    const middle = (N_TAPS - 1) / 2;
    const taps = Array.from({ length: N_TAPS }, (_, i) => {
      const x = (i - middle) / STEP;
      const sinc = x === 0 ? 1 : Math.sin(Math.PI * x * 0.9) / (Math.PI * x * 0.9);
      return sinc * (0.5 - 0.5 * Math.cos((2 * Math.PI * (i + 0.5)) / N_TAPS));
    });
    const sum = taps.reduce((total, tap) => total + tap, 0);
    this.taps = taps.map((tap) => tap / sum);
  }

  // `pcm` must hold a multiple of three samples.
  push(pcm) {
    const all = new Float32Array(this.past.length + pcm.length);
    all.set(this.past);
    all.set(pcm, this.past.length);
    this.past = all.slice(pcm.length);
    const output = new Float32Array(pcm.length / STEP);
    for (let i = 0; i < output.length; i += 1) {
      for (let j = 0; j < N_TAPS; j += 1) output[i] += all[i * STEP + j] * this.taps[j];
    }
    return output;
  }
}

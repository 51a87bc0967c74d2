// Frames to sound: decodes Opus with WebCodecs, cuts pre-skip and padding, and plays without gaps.

const RATE_HZ = 48000;
const JITTER_S = 0.06; // what is held before the first sample
const MORE_JITTER_S = 0.02; // and so much more after each gap
const MAX_JITTER_S = 0.3;
const FADE_S = 0.02;

// Whether this browser decodes bare Opus packets. Elsewhere the server is asked for PCM.
export async function canDecodeOpus() {
  if (typeof AudioDecoder === "undefined") return false;
  try {
    const config = { codec: "opus", sampleRate: RATE_HZ, numberOfChannels: 1 };
    return (await AudioDecoder.isConfigSupported(config)).supported === true;
  } catch {
    return false;
  }
}

export class Player {
  // `on` holds the callbacks: block(peak), ended(), fault(message).
  constructor(on) {
    this.on = on;
    this.context = null;
    this.run = null;
  }

  // Must be called from a click or a key: browsers start sound only then.
  async wake() {
    this.context ??= new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
    if (this.context.state !== "running") await this.context.resume();
  }

  start(started) {
    this.stop();
    const gain = this.context.createGain();
    gain.connect(this.context.destination);
    const run = {
      started, gain, decoder: null, held: null, sources: new Set(),
      toSkip: 0, nSamples: 0, nWanted: Infinity, nextS: null, playedBeforeS: 0, firstS: null,
      nGaps: 0, isComplete: false,
    };
    run.rateHz = started.codec === "opus" ? RATE_HZ : started.sample_rate_hz;
    run.scale = run.rateHz / started.sample_rate_hz; // announced counts are at the server's rate
    run.toSkip = Math.round(started.pre_skip_samples * run.scale);
    if (started.codec === "opus") run.decoder = this.#makeDecoder(run);
    this.run = run;
  }

  push(frame) {
    const run = this.run;
    if (!run) return;
    if (frame.codec === "opus") {
      run.decoder.decode(new EncodedAudioChunk({
        type: "key", timestamp: frame.mediaMs * 1000, data: frame.payload,
      }));
      return;
    }
    const bytes = frame.payload.slice(); // a copy, so that 16-bit samples are aligned
    const pcm16 = new Int16Array(bytes.buffer, 0, bytes.length >> 1);
    this.#take(run, Float32Array.from(pcm16, (sample) => sample / 32768));
  }

  // No more frames: the last packet is cut to the announced number of samples.
  async finish(done) {
    const run = this.run;
    if (!run) return;
    if (run.decoder) await run.decoder.flush().catch(() => {});
    if (run !== this.run) return;
    run.nWanted = Math.round(done.n_samples * run.scale);
    if (run.held) this.#schedule(run, run.held.subarray(0, Math.max(0, run.nWanted - run.nSamples)));
    run.held = null;
    run.isComplete = true;
    if (run.sources.size === 0) this.#end(run);
  }

  stop() {
    const run = this.run;
    this.run = null;
    if (!run) return;
    if (run.decoder && run.decoder.state !== "closed") run.decoder.close();
    const nowS = this.context.currentTime;
    run.gain.gain.setValueAtTime(1, nowS);
    run.gain.gain.linearRampToValueAtTime(0, nowS + FADE_S);
    for (const source of run.sources) {
      source.onended = null;
      source.stop(nowS + FADE_S);
    }
  }

  get nGaps() {
    return this.run?.nGaps ?? 0;
  }

  // Seconds of this response that have left the speaker.
  heardS() {
    const run = this.run;
    if (!run || run.nextS === null) return 0;
    const aheadS = Math.max(0, run.nextS - this.context.currentTime);
    return Math.max(0, run.nSamples / run.rateHz - aheadS - (this.context.outputLatency || 0));
  }

  #makeDecoder(run) {
    const decoder = new AudioDecoder({
      output: (audio) => {
        const pcm = new Float32Array(audio.numberOfFrames);
        audio.copyTo(pcm, { planeIndex: 0, format: "f32-planar" });
        audio.close();
        this.#take(run, pcm);
      },
      error: (error) => { if (run === this.run) this.on.fault(`The browser cannot decode the audio: ${error.message}`); },
    });
    decoder.configure({ codec: "opus", sampleRate: RATE_HZ, numberOfChannels: 1 });
    return decoder;
  }

  // Plays the block before; the newest is held, for its tail may be padding.
  #take(run, pcm) {
    if (run !== this.run) return;
    const skip = Math.min(run.toSkip, pcm.length);
    run.toSkip -= skip;
    if (run.held) this.#schedule(run, run.held);
    run.held = pcm.subarray(skip);
  }

  #schedule(run, pcm) {
    if (pcm.length === 0) return;
    const nowS = this.context.currentTime;
    if (run.nextS === null) {
      run.nextS = nowS + JITTER_S;
    } else if (run.nextS < nowS) {
      run.nGaps += 1;
      run.nextS = nowS + Math.min(JITTER_S + run.nGaps * MORE_JITTER_S, MAX_JITTER_S);
    }
    const buffer = this.context.createBuffer(1, pcm.length, run.rateHz);
    buffer.copyToChannel(pcm, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(run.gain);
    source.onended = () => {
      run.sources.delete(source);
      if (run.isComplete && run.sources.size === 0) this.#end(run);
    };
    source.start(run.nextS);
    run.sources.add(source);
    run.nextS += pcm.length / run.rateHz;
    run.nSamples += pcm.length;
    this.on.block(pcm.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0), pcm.length / run.rateHz);
  }

  #end(run) {
    if (run !== this.run) return;
    this.on.ended();
  }
}

// Frames to sound: decodes, cuts pre-skip and padding, and hands on to the audio thread.

import { RATE_HZ, decoderKind, makeDecoder } from "./opus.js";
import { floatsOf } from "./pcm.js";
import { PlayoutDesk } from "./playout-desk.js";

const SCRIPT_BLOCK_SAMPLES = 1024;

export class Player {
  // `on` holds the callbacks: pcm(samples) as decoded, report(figures), ended(), fault(message).
  constructor(on) {
    this.on = on;
    this.context = null;
    this.sink = null; // a promise of where messages to the audio thread go
    this.run = null;
    this.figures = null;
    this.kind = decoderKind();
  }

  // The form in which the server should send audio.
  async wantsOpus() {
    return (await this.kind) !== null;
  }

  // Must be called from a click or a key: browsers start sound only then.
  async wake() {
    this.context ??= new AudioContext({ sampleRate: RATE_HZ, latencyHint: "interactive" });
    this.sink ??= makeSink(this.context, (report) => this.#onReport(report));
    if (this.context.state !== "running") await this.context.resume();
    await this.sink;
  }

  start(started) {
    this.cut();
    // Announced counts are at the server's rate, and PCM was asked for at ours.
    const scale = RATE_HZ / started.sample_rate_hz;
    const run = {
      responseId: started.response_id, scale, toSkip: Math.round(started.pre_skip_samples * scale),
      nSamples: 0, held: null, decoder: null, isOver: false,
    };
    if (started.codec === "opus") run.decoder = this.#makeDecoder(run);
    this.run = run;
    this.figures = null;
    this.#send({ type: "start", responseId: run.responseId });
  }

  async push(frame) {
    const { run } = this;
    if (!run) return;
    if (frame.codec === "opus") (await run.decoder)?.decode(frame.payload, frame.mediaMs);
    else this.#take(run, floatsOf(frame.payload));
  }

  // No more frames: the last packet is cut to the announced number of samples.
  async finish(done) {
    const { run } = this;
    if (!run) return;
    await (await run.decoder)?.flush();
    if (run !== this.run) return;
    const nWanted = Math.round(done.n_samples * run.scale);
    if (run.held) this.#pass(run, run.held.subarray(0, Math.max(0, nWanted - run.nSamples)));
    run.held = null;
    this.#send({ type: "finish", responseId: run.responseId });
  }

  // Silence at once. Gives the milliseconds that were heard.
  cut() {
    const { run } = this;
    const heardMs = this.heardMs();
    this.run = null;
    if (!run) return heardMs;
    run.isOver = true;
    Promise.resolve(run.decoder).then((decoder) => decoder?.close());
    this.#send({ type: "cut" });
    return heardMs;
  }

  get isPlaying() {
    return this.run !== null;
  }

  // Milliseconds of this response that have left the loudspeaker.
  heardMs() {
    if (!this.figures) return 0;
    return Math.max(0, this.figures.playedS - (this.context.outputLatency || 0)) * 1000;
  }

  // Every sample that goes to the loudspeaker from now on is also given to `listener`, in blocks.
  async tap(listener) {
    this.listener = listener;
    await this.wake();
    this.#send({ type: "tap" });
  }

  async #send(message) {
    (await this.sink)?.(message);
  }

  async #makeDecoder(run) {
    try {
      const decoder = await makeDecoder(await this.kind, (pcm) => this.#take(run, pcm), (message) => this.#fail(run, message));
      if (run.isOver) decoder.close();
      return decoder;
    } catch (error) {
      this.#fail(run, error.message);
      return null;
    }
  }

  #fail(run, message) {
    if (run !== this.run) return;
    this.cut();
    this.on.fault(`The browser cannot decode the audio: ${message}`);
  }

  // Passes on the block before; the newest is held, for its tail may be padding.
  #take(run, pcm) {
    if (run !== this.run) return;
    const skip = Math.min(run.toSkip, pcm.length);
    run.toSkip -= skip;
    if (run.held) this.#pass(run, run.held);
    run.held = pcm.subarray(skip);
  }

  #pass(run, pcm) {
    if (pcm.length === 0) return;
    run.nSamples += pcm.length;
    this.on.pcm?.(pcm);
    this.#send({ type: "push", responseId: run.responseId, pcm });
  }

  #onReport(report) {
    for (const block of report.tapped) this.listener?.(block);
    if (!this.run || report.responseId !== this.run.responseId) return;
    this.figures = report;
    this.on.report(report);
    if (report.state !== "idle") return;
    this.run = null;
    this.on.ended();
  }
}

// The audio thread. Pages that are not in a secure context have none: there the same code runs here.
async function makeSink(context, report) {
  if (context.audioWorklet) {
    await context.audioWorklet.addModule("playout-worklet.js");
    const node = new AudioWorkletNode(context, "playout", { numberOfInputs: 0, outputChannelCount: [1] });
    node.port.onmessage = ({ data }) => report(data);
    node.connect(context.destination);
    return (message) => node.port.postMessage(message);
  }
  const desk = new PlayoutDesk(context.sampleRate, report);
  const node = context.createScriptProcessor(SCRIPT_BLOCK_SAMPLES, 0, 1);
  node.onaudioprocess = (event) => desk.render(event.outputBuffer.getChannelData(0));
  node.connect(context.destination);
  return (message) => desk.onMessage(message);
}

// The microphone: 20 ms of sound at a time, coded for the wire. Says in plain words why it cannot.

import { RATE_HZ, makeEncoder } from "./opus.js";
import { Decimator, PCM_IN_RATE_HZ, bytesOf } from "./pcm.js";

// Echo cancellation keeps the loudspeaker from interrupting itself.
const WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };

const REASONS = {
  NotAllowedError: ["The microphone is blocked for this page.", "Allow it at the address bar of the browser, then press Talk again. Typing works without it."],
  NotFoundError: ["No microphone was found.", "Plug one in and press Talk again, or type instead."],
  NotReadableError: ["The microphone is in use by another program, or the system holds it back.", "Close the other program and press Talk again, or type instead."],
};

export class MicrophoneError extends Error {
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

// Whether the browser would give a microphone to this page, by its address alone.
export function isAllowedHere() {
  return window.isSecureContext && Boolean(navigator.mediaDevices?.getUserMedia);
}

export const INSECURE = [
  "Browsers give the microphone only to pages that come over https, or from this computer.",
  "Open the page at http://localhost instead, or put the server behind https. You can type: answers are still spoken.",
];

export class Microphone {
  // `on` holds the callbacks: packet(codec, payload), level(peak), ended(error or null).
  constructor(on) {
    this.on = on;
    this.open = null;
  }

  get isOpen() {
    return this.open !== null;
  }

  // The form of what `packet` will be given.
  static async format() {
    const probe = await makeEncoder(() => {}, () => {});
    probe?.close();
    return probe ? { type: "audio/opus", rate: RATE_HZ } : { type: "audio/pcm", rate: PCM_IN_RATE_HZ };
  }

  // Raises MicrophoneError. `context` is used where it can take the microphone as it is.
  async start(context) {
    if (!isAllowedHere()) throw new MicrophoneError(...INSECURE);
    const media = await askForMedia();
    const open = { media, context: null, encoder: null, node: null };
    try {
      const source = await this.#connect(open, context);
      await open.context.audioWorklet.addModule("capture-worklet.js");
      open.encoder = await this.#makeCoder();
      open.node = new AudioWorkletNode(open.context, "capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
      open.node.port.onmessage = ({ data }) => this.#onFrame(open, data);
      source.connect(open.node);
      open.source = source;
    } catch (error) {
      release(open, context);
      throw new MicrophoneError(`The microphone cannot be used: ${error.message}`, "Typing works without it.");
    }
    open.shared = context;
    media.getAudioTracks()[0].onended = () => {
      if (this.open !== open) return;
      this.stop();
      this.on.ended(new MicrophoneError("The microphone is gone.", "Plug it in and press Talk again, or type instead."));
    };
    this.open = open;
  }

  stop() {
    if (!this.open) return;
    release(this.open, this.open.shared);
    this.open = null;
    this.on.level(0);
  }

  async #connect(open, context) {
    try {
      open.context = context;
      return context.createMediaStreamSource(open.media);
    } catch {
      // Firefox: a microphone only in a context of its own rate. The worklet converts.
      open.context = new AudioContext();
      return open.context.createMediaStreamSource(open.media);
    }
  }

  async #makeCoder() {
    const encoder = await makeEncoder(
      (packet) => this.on.packet("opus", packet),
      (message) => {
        this.stop();
        this.on.ended(new MicrophoneError(`The browser cannot encode the sound: ${message}`, ""));
      },
    );
    if (encoder) return encoder;
    const decimator = new Decimator();
    return { encode: (pcm) => this.on.packet("pcm16", bytesOf(decimator.push(pcm))), close: () => {} };
  }

  #onFrame(open, pcm) {
    if (open !== this.open) return;
    this.on.level(pcm.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0));
    open.encoder.encode(pcm);
  }
}

async function askForMedia() {
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: WANTED });
  } catch (error) {
    const [message, hint] = REASONS[error.name] ?? [`The microphone cannot be opened: ${error.message}`, "Typing works without it."];
    throw new MicrophoneError(message, hint);
  }
}

function release(open, shared) {
  if (open.node) open.node.port.onmessage = null;
  open.source?.disconnect();
  open.encoder?.close();
  open.media.getTracks().forEach((track) => track.stop());
  if (open.context && open.context !== shared) open.context.close();
}

// Binary frames of parley.v1: an 8-byte header, then one Opus packet or whole PCM16 samples.

const HEADER_BYTES = 8;
const KIND_AUDIO = 1;
const CODECS = { 1: "opus", 2: "pcm16" };
const CODEC_IDS = { opus: 1, pcm16: 2 };

export const SUBPROTOCOL = "parley.v1";
export const PACKET_MS = 20;

// A frame of what the microphone hears: a client's response number is 0.
export function makeFrame(codec, mediaMs, payload) {
  const frame = new Uint8Array(HEADER_BYTES + payload.byteLength);
  const view = new DataView(frame.buffer);
  view.setUint8(0, KIND_AUDIO);
  view.setUint8(1, CODEC_IDS[codec]);
  view.setUint32(4, mediaMs % 2 ** 32, true);
  frame.set(payload, HEADER_BYTES);
  return frame;
}

// Lets through the frames of one response. Everything that is stale (under way when its response was
// stopped or followed by another) ends here, and only here.
export class FrameGate {
  #number = null;

  open(responseNumber) {
    this.#number = responseNumber & 0xffff;
  }

  shut() {
    this.#number = null;
  }

  // The frame in a binary message, or null where nobody may hear it.
  take(message) {
    if (message.byteLength <= HEADER_BYTES) return null;
    const view = new DataView(message);
    const codec = CODECS[view.getUint8(1)];
    if (view.getUint8(0) !== KIND_AUDIO || !codec || view.getUint16(2, true) !== this.#number) return null;
    return { codec, mediaMs: view.getUint32(4, true), payload: new Uint8Array(message, HEADER_BYTES) };
  }
}

export function socketUrl(path) {
  return `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${path}`;
}

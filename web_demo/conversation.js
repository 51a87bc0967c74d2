// The conversation lane of parley.v1: one socket, kept up. JSON events as text, audio as binary frames.
// Knows no sound and no page.

import { keyHeaders, subprotocols } from "./key.js";
import { FrameGate, PACKET_MS, makeFrame, socketUrl } from "./wire.js";

const PATH = "/v1/realtime";
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const CLOSE_NORMAL = 1000;
const FINAL_CODES = [1008, 1009]; // the server has refused this client; asking again would not help
const N_SEND_TIMES = 2048; // 40 s of frames

export class Conversation {
  // `on` holds the callbacks: link(state), ready(), event(event), frame(frame).
  // The states of `link`: {name: "connecting" | "open" | "asleep" | "retrying" | "refused", ...}.
  constructor(on) {
    this.on = on;
    this.socket = null;
    this.gate = new FrameGate();
    this.nFailed = 0;
    this.timer = 0;
    this.#forget();
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN && this.isReady;
  }

  // Opens the socket unless it is open. Resolves once the session is there, rejects if it failed.
  open() {
    if (this.isOpen) return Promise.resolve();
    if (this.opening) return this.opening;
    clearTimeout(this.timer);
    this.opening = new Promise((resolve, reject) => this.#connect(resolve, reject)).finally(() => { this.opening = null; });
    return this.opening;
  }

  send(event) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  // 20 ms of what the microphone hears.
  sendAudio(codec, payload) {
    if (!this.isOpen) return;
    this.sendTimesMs[this.nSent % N_SEND_TIMES] = performance.now();
    this.socket.send(makeFrame(codec, this.nSent * PACKET_MS, payload));
    this.nSent += 1;
  }

  // When the sound at `audioMs` of this session was captured, on this page's clock.
  captureTimeMs(audioMs) {
    const n = Math.round(audioMs / PACKET_MS);
    const isKnown = n < this.nSent && n > this.nSent - N_SEND_TIMES;
    return isKnown && this.sendTimesMs[n % N_SEND_TIMES] ? this.sendTimesMs[n % N_SEND_TIMES] : performance.now();
  }

  // From now on the frames of this response are let through; without a number, none are.
  listenTo(responseNumber) {
    if (responseNumber === null) this.gate.shut();
    else this.gate.open(responseNumber);
  }

  #forget() {
    this.isReady = false;
    this.nSent = 0;
    this.sendTimesMs = [];
    this.gate.shut();
  }

  #connect(resolve, reject) {
    this.#forget();
    const socket = new WebSocket(socketUrl(PATH), subprotocols());
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.on.link({ name: "connecting", isAgain: this.nFailed > 0 });
    socket.onclose = (event) => {
      if (socket !== this.socket) return;
      reject(new Error("closed"));
      this.#onClose(event);
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this.socket) return;
      if (typeof data !== "string") {
        const frame = this.gate.take(data);
        if (frame) this.on.frame(frame);
        return;
      }
      const event = JSON.parse(data);
      if (event.type === "session.created") {
        this.isReady = true;
        this.nFailed = 0;
        this.on.link({ name: "open" });
        this.on.ready(event.session);
        resolve();
      } else {
        this.on.event(event);
      }
    };
  }

  async #onClose({ code, reason }) {
    const wasReady = this.isReady;
    this.#forget();
    if (code === CLOSE_NORMAL) {
      this.on.link({ name: "asleep", wasReady });
      return;
    }
    if (FINAL_CODES.includes(code)) {
      this.on.link({ name: "refused", wasReady, reason });
      return;
    }
    const waitMs = RETRY_MS[Math.min(this.nFailed, RETRY_MS.length - 1)] * (0.8 + 0.4 * Math.random());
    this.nFailed += 1;
    this.timer = setTimeout(() => this.open().catch(() => {}), waitMs);
    this.on.link({ name: "retrying", wasReady, waitMs, reason: reason || (await whyNot()) });
  }
}

// A browser does not tell why a handshake failed; the server does, elsewhere.
async function whyNot() {
  try {
    const answer = await fetch("/readyz");
    const state = await answer.json();
    if (state.stopping) return "The server is stopping.";
    if (!state.ready && !(await fetch("/healthz")).ok) return "The model has stopped; the server must be started again.";
    if (!state.ready) return "The server is still loading.";
    if ((await fetch("/v1/models", { headers: keyHeaders() })).status === 401) return "The server wants another key: load this page again.";
    return "The server has no room for another conversation, or the connection broke off.";
  } catch {
    return "The server does not answer.";
  }
}

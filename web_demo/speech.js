// The speech lane of parley.v1: JSON events as text frames, audio as binary frames. No sound here.

import { subprotocols } from "./key.js";
import { FrameGate, socketUrl } from "./wire.js";

const PATH = "/v1/audio/speech/stream";

export class SpeechSocket {
  // `on` holds the callbacks: state(name), started(event), frame(frame), audioDone(event),
  // done(response), error(error).
  constructor(on) {
    this.on = on;
    this.socket = null;
    this.currentId = null; // of the response that is being heard
    this.gate = new FrameGate();
    this.isAsked = false;
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  open() {
    const socket = new WebSocket(socketUrl(PATH), subprotocols());
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.on.state("connecting");
    return new Promise((resolve, reject) => {
      socket.onopen = () => {
        this.on.state("open");
        this.#send({ type: "session.update", session: {} }); // a socket that says nothing is closed
        resolve();
      };
      socket.onclose = (event) => {
        if (socket !== this.socket) return;
        this.on.state(event.code === 1000 ? "idle" : "closed"); // 1000: nothing was asked for a while
        reject(new Error("closed"));
        if (this.isAsked) this.#lose(event);
      };
      socket.onmessage = ({ data }) => {
        if (typeof data === "string") this.#onEvent(JSON.parse(data));
        else this.#onFrame(this.gate.take(data));
      };
    });
  }

  // Asks for one response. Text goes in one piece: a page has no deltas.
  async speak(text, session) {
    if (!this.isOpen) await this.open();
    this.isAsked = true;
    this.#forget();
    this.#send({ type: "session.update", event_id: "settings", session });
    this.#send({ type: "response.create", event_id: "ask" });
    this.#send({ type: "input_text.append", event_id: "text", text });
    this.#send({ type: "input_text.end" });
  }

  cancel() {
    const id = this.currentId;
    const isOver = !this.isAsked; // all of it has come; only the listener is behind
    this.isAsked = false;
    this.#forget();
    if (this.isOpen && !isOver) this.#send(id ? { type: "response.cancel", response_id: id } : { type: "response.cancel" });
  }

  reportPlayout(heardMs) {
    if (!this.currentId || !this.isOpen) return;
    this.#send({ type: "output_audio.playout", response_id: this.currentId, heard_ms: heardMs });
  }

  #forget() {
    this.currentId = null;
    this.gate.shut();
  }

  #send(event) {
    this.socket.send(JSON.stringify(event));
  }

  #onEvent(event) {
    const isCurrent = this.currentId && event.response_id === this.currentId;
    switch (event.type) {
      case "response.created":
        if (!this.isAsked) break;
        this.currentId = event.response.id;
        this.gate.open(event.response.number);
        break;
      case "response.output_audio.started":
        if (isCurrent) this.on.started(event);
        break;
      case "response.output_audio.done":
        if (isCurrent) this.on.audioDone(event);
        break;
      case "response.done":
        if (event.response.id !== this.currentId) break;
        this.isAsked = false; // the id stays: its playout is still reported
        this.on.done(event.response);
        break;
      case "error":
        // It may have ended while the cancel was on its way.
        if (event.error.code !== "response_cancel_not_active") this.on.error(event.error);
        break;
    }
  }

  #onFrame(frame) {
    if (frame) this.on.frame(frame);
  }

  #lose(event) {
    this.isAsked = false;
    this.#forget();
    this.on.error({
      code: "connection_lost",
      message: event.reason || "The connection to the server broke off.",
    });
  }
}

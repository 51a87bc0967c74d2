// The conversation: what the server tells becomes sound and transcript, what the user does becomes
// events. Knows the page only through `view`.

import { Answer } from "./answer.js";
import { Conversation } from "./conversation.js";
import { Microphone } from "./microphone.js";
import { Player } from "./player.js";

const PCM_OUT_RATE_HZ = 48000;
const MAX_REPLAYED = 40;
const MIN_HELD_FRAMES = 8; // of 20 ms: less is a slip of the finger
const TRAIL_MS = 80; // after the button is let go: what the encoder still holds, and the last consonant
const SILENT_ERRORS = ["response_cancel_not_active"]; // it ended while the cancel was on its way
const SILENT_EVENTS = ["cut", "replay"];

export class Talk {
  // `view` holds the callbacks: link(state), session(info), phase(name), fault(message, hint),
  // heard(peak), spoken(peak), figures(figures), firstSound(ms), microphone(isOpen).
  constructor(view, transcript) {
    this.view = view;
    this.transcript = transcript;
    this.settings = {}; // model and voice as chosen here; the server's own until then
    this.mode = "open"; // or "hold": the user holds a button to talk
    this.answer = null;
    this.isUserSpeaking = false;
    this.isHolding = false;
    this.trailTimer = null; // runs from the button's release to the end of what is sent
    this.isWaiting = false;
    this.askedMs = null; // when the user began to wait for the answer to come
    this.nTyped = 0;
    this.player = new Player({
      report: (figures) => this.#onReport(figures),
      ended: () => {
        this.answer?.end();
        this.#showPhase();
      },
      fault: (message) => {
        this.answer?.cut({ isOurs: true });
        view.fault(message, "");
      },
    });
    this.conversation = new Conversation({
      link: (state) => this.#onLink(state),
      ready: (session) => this.#onReady(session),
      event: (event) => this.#onEvent(event),
      frame: (frame) => this.player.push(frame),
    });
    this.microphone = new Microphone({
      packet: (codec, payload) => {
        if (this.mode === "open" || this.isHolding || this.trailTimer) this.conversation.sendAudio(codec, payload);
      },
      level: (peak) => view.heard(peak),
      ended: (error) => {
        view.microphone(false);
        if (error) view.fault(error.message, error.hint);
      },
    });
  }

  get isBusy() {
    return this.isWaiting || Boolean(this.answer && !this.answer.isOver);
  }

  // What the user does. Each may be the first gesture, which starts the sound.

  async openMicrophone() {
    await this.#connect();
    await this.microphone.start(this.player.context);
    this.view.microphone(true);
    this.#showPhase();
  }

  closeMicrophone() {
    this.microphone.stop();
    this.view.microphone(false);
    this.#showPhase();
  }

  setMode(mode) {
    this.mode = mode;
    this.isHolding = false;
    this.isUserSpeaking = false;
    if (this.conversation.isOpen) {
      this.#update({ audio: { input: { turn_detection: this.#turnDetection() } } });
      this.conversation.send({ type: "input_audio_buffer.clear" });
    }
    this.#showPhase();
  }

  // Push to talk: what is said between `hold` and `release` is one turn.
  async hold() {
    if (this.isHolding) return;
    if (!this.microphone.isOpen) await this.openMicrophone();
    await this.#connect();
    this.interrupt();
    clearTimeout(this.trailTimer);
    this.trailTimer = null;
    this.conversation.send({ type: "input_audio_buffer.clear" });
    this.nSentBefore = this.conversation.nSent;
    this.isHolding = true;
    this.#showPhase();
  }

  release() {
    if (!this.isHolding) return;
    this.isHolding = false;
    this.trailTimer = setTimeout(() => this.#commit(), TRAIL_MS);
    this.#wait(performance.now());
  }

  #commit() {
    this.trailTimer = null;
    if (this.conversation.nSent - this.nSentBefore < MIN_HELD_FRAMES) {
      this.conversation.send({ type: "input_audio_buffer.clear" });
      this.isWaiting = false;
      this.#showPhase();
      this.view.fault("That was too short to hear.", "Hold the button for as long as you speak.");
      return;
    }
    this.conversation.send({ type: "input_audio_buffer.commit", event_id: "release" });
    this.conversation.send({ type: "response.create", event_id: "release" });
  }

  async say(text) {
    await this.#connect();
    this.interrupt();
    this.nTyped += 1;
    const id = `typed_${this.nTyped}`;
    this.transcript.addUser(id, text);
    this.conversation.send(itemOf(id, "user", text));
    this.conversation.send({ type: "response.create", event_id: "say" });
    this.#wait(performance.now());
  }

  interrupt() {
    if (this.answer && !this.answer.isOver) this.answer.cut({ isOurs: true });
    else if (this.isWaiting) this.conversation.send({ type: "response.cancel" });
    this.isWaiting = false;
    this.#showPhase();
  }

  choose(settings) {
    Object.assign(this.settings, settings);
    if (this.conversation.isOpen) this.#update(this.#chosen());
  }

  // A new conversation: the old one is forgotten on both sides.
  forget() {
    this.interrupt();
    for (const { itemId } of this.transcript.turns) {
      this.conversation.send({ type: "conversation.item.delete", event_id: "replay", item_id: itemId });
    }
    this.transcript.clear();
  }

  reconnect() {
    return this.conversation.open();
  }

  // The link

  async #connect() {
    await this.player.wake();
    await this.conversation.open();
  }

  #onLink(state) {
    if (state.name !== "open") {
      this.answer?.cut();
      this.answer = null;
      this.isUserSpeaking = this.isHolding = this.isWaiting = false;
      clearTimeout(this.trailTimer);
      this.trailTimer = null;
      // Nobody listens any more, and nothing will ask again by itself.
      if (["asleep", "refused"].includes(state.name) && this.microphone.isOpen) this.closeMicrophone();
      this.transcript.turns.filter((turn) => !turn.isDone).forEach((turn) => {
        if (turn.kind === "user") this.transcript.completeUser(turn, turn.text);
        else this.transcript.endAnswer(turn, "cut");
      });
    }
    this.view.link(state);
    this.#showPhase();
  }

  async #onReady(session) {
    this.openDetection = session.audio.input.turn_detection;
    this.view.session(session);
    const input = { format: await Microphone.format(), turn_detection: this.#turnDetection() };
    const isOpus = await this.player.wantsOpus();
    const output = { format: isOpus ? { type: "audio/opus" } : { type: "audio/pcm", rate: PCM_OUT_RATE_HZ } };
    const chosen = this.#chosen();
    this.#update({ ...chosen, audio: { input, output: { ...output, ...chosen.audio?.output } } });
    // What was said before the connection broke off.
    this.transcript.history().slice(-MAX_REPLAYED).forEach(({ role, text }, i) => {
      this.nReplays = (this.nReplays ?? 0) + 1;
      this.conversation.send({ ...itemOf(`replay_${this.nReplays}_${i}`, role, text), event_id: "replay" });
    });
  }

  #turnDetection() {
    return this.mode === "open" ? (this.openDetection ?? { type: "server_vad" }) : null;
  }

  #chosen() {
    const { model, voice } = this.settings;
    return { ...(model ? { model } : {}), ...(voice ? { audio: { output: { voice } } } : {}) };
  }

  #update(session) {
    this.conversation.send({ type: "session.update", event_id: "settings", session });
  }

  // What the server tells

  #onEvent(event) {
    const answer = event.response_id && event.response_id === this.answer?.id ? this.answer : null;
    switch (event.type) {
      case "session.updated": this.view.session(event.session); break;
      case "input_audio_buffer.speech_started": this.#onSpeech(event); break;
      case "input_audio_buffer.speech_stopped":
        this.isUserSpeaking = false;
        this.#wait(this.conversation.captureTimeMs(event.audio_end_ms));
        break;
      case "input_audio_buffer.committed": this.#userTurn(event.item_id); break;
      case "conversation.item.added": this.#onItem(event.item); break;
      case "conversation.item.input_audio_transcription.delta":
        this.transcript.extendUser(this.#userTurn(event.item_id), event.delta);
        break;
      case "conversation.item.input_audio_transcription.completed": this.#onTranscript(event.item_id, event.transcript); break;
      case "conversation.item.input_audio_transcription.failed":
        this.#onTranscript(event.item_id, "");
        this.view.fault(event.error.message, "");
        break;
      case "response.created":
        this.answer?.cut();
        this.answer = new Answer(event.response, this.askedMs ?? performance.now(), this);
        this.askedMs = null;
        this.isWaiting = true;
        break;
      case "response.output_item.added": answer?.addItem(event.item); break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta": answer?.addText(event.item_id, event.delta); break;
      case "response.output_audio.started": answer?.startAudio(event); break;
      case "response.output_audio.mark": answer?.addMark(event); break;
      case "response.output_audio.done": if (answer && !answer.isOver) this.player.finish(event); break;
      case "output_audio_buffer.cleared": answer?.cut(); break;
      case "response.done": this.#onDone(event.response); break;
      case "error": this.#onError(event.error); break;
    }
    this.#showPhase();
  }

  #onSpeech({ item_id: itemId }) {
    this.isUserSpeaking = true;
    this.isWaiting = false;
    this.askedMs = null;
    this.#userTurn(itemId);
  }

  #userTurn(itemId) {
    return this.transcript.find(itemId) ?? this.transcript.addUser(itemId);
  }

  #onItem(item) {
    if (item.type === "message" && item.role === "user" && item.content?.[0]?.type === "input_audio") this.#userTurn(item.id);
  }

  #onTranscript(itemId, text) {
    this.transcript.completeUser(this.#userTurn(itemId), text);
    // Nobody spoke: no answer will come, unless one is already under way.
    if (!text.trim() && !(this.answer && !this.answer.isMade)) this.isWaiting = false;
  }

  #onDone(response) {
    const { answer } = this;
    if (response.id !== answer?.id) return;
    const wasOver = answer.isOver;
    answer.made(response);
    this.isWaiting = false;
    if (wasOver || !["failed", "incomplete"].includes(response.status)) return;
    const details = response.status_details ?? {};
    if (response.status === "failed") {
      const retry = details.retry_after_s ? `The server is busy. Try again in ${Math.ceil(details.retry_after_s)} s.` : "";
      this.view.fault(details.error?.message ?? "The answer failed.", retry);
    }
  }

  #onError(error) {
    if (SILENT_ERRORS.includes(error.code) || SILENT_EVENTS.includes(error.event_id)) return;
    this.isWaiting = false;
    this.view.fault(error.message, "");
  }

  // What is shown

  #onReport(figures) {
    this.view.spoken(figures.peak);
    this.view.figures(figures);
    const { answer } = this;
    if (!answer) return;
    const hadSound = answer.firstSoundMs !== null;
    answer.onReport(figures);
    if (!hadSound && answer.firstSoundMs !== null) {
      this.isWaiting = false;
      this.view.firstSound(answer.firstSoundMs);
      this.#showPhase();
    }
  }

  #wait(askedMs) {
    this.askedMs = askedMs;
    this.isWaiting = true;
    this.#showPhase();
  }

  #showPhase() {
    const isSounding = this.answer && !this.answer.isOver && this.answer.firstSoundMs !== null;
    if (this.isHolding || this.isUserSpeaking) this.view.phase("hearing");
    else if (isSounding) this.view.phase("speaking");
    else if (this.isWaiting) this.view.phase("thinking");
    else if (this.microphone.isOpen) this.view.phase(this.mode === "open" ? "listening" : "ready");
    else this.view.phase("idle");
  }
}

function itemOf(id, role, text) {
  const type = role === "assistant" ? "output_text" : "input_text";
  return { type: "conversation.item.create", item: { id, type: "message", role, content: [{ type, text }] } };
}

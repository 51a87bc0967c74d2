// The second tab: text to speech. Reads the form, asks the server, shows what happens.

import { $, fill, hideFault, show, showFault, showLink } from "./page.js";
import { Player } from "./player.js";
import { SpeechSocket } from "./speech.js";
import { Wave } from "./wave.js";

const PLAYOUT_REPORT_MS = 500;
const PCM_RATE_HZ = 48000;
const DRAW_EVERY_MS = 33;
const LINK_WORDS = { connecting: ["Connecting", "busy"], open: ["Connected", "open"], idle: ["Asleep", ""], closed: ["Not connected", "lost"] };

export class Speak {
  constructor() {
    this.models = [];
    this.state = "idle"; // idle, waiting (asked, no sound yet), playing
    this.turn = null; // figures of the reply at hand
    this.isShown = false;
    this.lastReportMs = this.lastDrawMs = 0;
    this.linkName = "idle";
    this.wave = new Wave($("wave"));
    this.player = new Player({
      pcm: (pcm) => this.wave.add(peakOf(pcm), pcm.length / PCM_RATE_HZ),
      report: () => {},
      ended: () => this.#finish("Done."),
      fault: (message) => { this.#halt(); showFault(message); },
    });
    this.socket = new SpeechSocket({
      state: (name) => this.#onLink(name),
      started: (event) => {
        this.turn.started = event;
        this.player.start(event);
      },
      frame: (frame) => this.#onFrame(frame),
      audioDone: (event) => {
        this.turn.audioS = event.n_samples / this.turn.started.sample_rate_hz;
        this.player.finish(event);
        this.#showFigures();
      },
      done: (response) => this.#onDone(response),
      error: (error) => this.#onError(error),
    });
    this.#listen();
  }

  setModels(models) {
    this.models = models.filter((model) => model.tasks.includes("speak"));
    fill($("model"), this.models.map((model) => model.id));
    $("model-field").hidden = this.models.length < 2;
    if (this.models.length) this.#showModel(this.models[0]);
  }

  enter() {
    this.isShown = true;
    this.#onLink(this.linkName);
    if (!this.socket.isOpen && this.models.length) this.socket.open().catch(() => {}); // ready before it is needed
  }

  leave() {
    this.isShown = false;
    if (this.state !== "idle") this.#stop();
  }

  // The form

  #listen() {
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.state === "idle") this.#speak();
      else this.#stop();
    });
    document.addEventListener("keydown", (event) => {
      if (!this.isShown) return;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        if (this.state !== "idle") this.#stop();
        this.#speak();
      } else if (event.key === "Escape" && this.state !== "idle") {
        event.preventDefault();
        this.#stop();
      }
    });
    $("model").addEventListener("change", () => this.#showModel(this.#model()));
    $("speed").addEventListener("input", showSpeed);
  }

  async #speak() {
    const text = $("text").value.trim();
    hideFault();
    if (!text) {
      showFault("There is no text to speak.", "Type a sentence first.");
      $("text").focus();
      return;
    }
    const mine = { askedMs: performance.now(), ttfaMs: null, started: null, audioS: null, nBytes: 0, lastMs: 0 };
    this.turn = mine;
    this.wave.clear();
    this.#show("waiting", "Waiting for the first sound.");
    try {
      await this.player.wake();
      const session = await this.#settings();
      if (this.turn !== mine || this.state !== "waiting") return;
      mine.askedMs = performance.now();
      await this.socket.speak(text, session);
    } catch {
      if (this.turn !== mine) return;
      this.#halt();
      showFault("The server does not answer.", "Start it with: make serve");
    }
  }

  #stop() {
    this.socket.cancel();
    this.player.cut();
    this.#finish("Stopped.");
  }

  #halt() {
    this.player.cut();
    this.#show("idle", "");
  }

  #finish(message) {
    this.#show("idle", message); // first: nobody waits for a sound any more, and the figures show none
    this.#showFigures();
    this.wave.draw(message === "Done." ? this.wave.totalS : this.wave.heardS);
  }

  async #settings() {
    const model = this.#model();
    const isOpus = await this.player.wantsOpus();
    const session = { output: isOpus ? { codec: "opus" } : { codec: "pcm16", sample_rate_hz: PCM_RATE_HZ } };
    if (!model) return session;
    session.model = model.id;
    if (!$("voice-field").hidden) session.voice = $("voice").value;
    if (!$("speed-field").hidden) session.options = { speed: Number($("speed").value) };
    return session;
  }

  // What the server tells

  #onLink(name) {
    this.linkName = name;
    if (this.isShown) showLink(...LINK_WORDS[name]);
  }

  #onFrame(frame) {
    const { turn } = this;
    if (turn.ttfaMs === null) {
      turn.ttfaMs = performance.now() - turn.askedMs;
      this.#show("playing", "Speaking.");
    }
    turn.nBytes += frame.payload.length;
    turn.lastMs = performance.now();
    this.player.push(frame);
  }

  #onDone(response) {
    if (response.status === "failed" || response.status === "incomplete") {
      const details = response.status_details ?? {};
      const error = details.error ?? { message: `The reply is ${response.status}: ${details.reason ?? "no reason given"}.` };
      if (!this.turn.started) this.#halt();
      showFault(error.message, retryHint(details.retry_after_s));
    } else if (!this.turn.started) {
      this.#finish("There was nothing to say.");
    }
  }

  #onError(error) {
    if (this.state !== "idle") this.socket.cancel(); // nothing may be spoken with settings that were refused
    this.#halt();
    showFault(error.message, error.code === "connection_lost" ? "Is the server still running? Speak again to reconnect." : "");
  }

  // What is shown

  #show(next, message) {
    this.state = next;
    $("status").textContent = message;
    $("go-text").textContent = next === "idle" ? "Speak" : "Stop";
    $("go").classList.toggle("quiet", next !== "idle");
    if (next !== "idle") requestAnimationFrame((nowMs) => this.#tick(nowMs));
  }

  // Drawing must not delay the decoding, which shares this thread: 30 pictures a second are enough.
  #tick(nowMs) {
    if (this.state === "idle") return;
    if (nowMs - this.lastDrawMs >= DRAW_EVERY_MS) {
      this.lastDrawMs = nowMs;
      this.#showFigures();
      if (this.state === "playing") this.#showHeard(nowMs);
    }
    requestAnimationFrame((nextMs) => this.#tick(nextMs));
  }

  #showHeard(nowMs) {
    const heardMs = this.player.heardMs();
    this.wave.draw(heardMs / 1000);
    if (nowMs - this.lastReportMs <= PLAYOUT_REPORT_MS) return;
    this.lastReportMs = nowMs;
    this.socket.reportPlayout(Math.round(heardMs));
  }

  #showFigures() {
    const { turn } = this;
    if (!turn) return;
    const waitedMs = turn.ttfaMs ?? (this.state === "waiting" ? performance.now() - turn.askedMs : null);
    const audioS = turn.audioS ?? this.wave.totalS;
    const tookS = (turn.lastMs - turn.askedMs) / 1000;
    show("ttfa", waitedMs === null ? "–" : Math.round(waitedMs));
    show("seconds", audioS ? audioS.toFixed(1) : "–");
    show("pace", audioS && tookS > 0 ? (audioS / tookS).toFixed(1) : "–");
    show("rate", audioS ? Math.round((turn.nBytes * 8) / audioS / 1000) : "–");
    show("gaps", turn.started ? (this.player.figures?.nUnderruns ?? 0) : "–");
  }

  #model() {
    return this.models.find((model) => model.id === $("model").value) ?? this.models[0];
  }

  #showModel(model) {
    const voices = model.voices ?? [];
    const speed = (model.options ?? []).find((option) => option.name === "speed");
    fill($("voice"), voices);
    $("voice-field").hidden = voices.length < 2;
    $("speed-field").hidden = !speed;
    if (!speed) return;
    $("speed").min = speed.minimum ?? 0.5;
    $("speed").max = speed.maximum ?? 2;
    $("speed").value = speed.default ?? 1;
    showSpeed();
  }
}

function showSpeed() {
  $("speed-value").textContent = `${Number($("speed").value).toFixed(2)}×`;
}

function peakOf(pcm) {
  return pcm.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0);
}

function retryHint(retryAfterS) {
  return retryAfterS ? `The server is busy. Try again in ${Math.ceil(retryAfterS)} s.` : "";
}

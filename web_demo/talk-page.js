// The first tab: the conversation's buttons, meters and words.

import { LiveWave } from "./live-wave.js";
import { INSECURE, isAllowedHere } from "./microphone.js";
import { $, fill, hideFault, show, showFault, showLink } from "./page.js";
import { Talk } from "./talk.js";
import { Transcript } from "./transcript.js";

const DRAW_EVERY_MS = 33;
const FLOOR_DB = -60;
const LEVEL_FALL = 0.8;

const PHASES = {
  idle: "",
  ready: "Hold the button while you speak.",
  listening: "Listening.",
  hearing: "Hearing you.",
  thinking: "Thinking.",
  speaking: "Speaking.",
};
const KEYS = {
  open: "<kbd>Esc</kbd> interrupts",
  hold: "<kbd>Space</kbd> held talks, <kbd>Esc</kbd> interrupts",
};

export class TalkPage {
  constructor() {
    this.models = [];
    this.firstSoundsMs = [];
    this.level = 0;
    this.isShown = false;
    this.link = { name: "asleep" };
    this.wave = new LiveWave($("live"));
    this.transcript = new Transcript($("turns"), $("announcer"));
    this.talk = new Talk({
      link: (state) => this.#onLink(state),
      session: (session) => this.#onSession(session),
      phase: (name) => this.#onPhase(name),
      fault: showFault,
      microphone: (isOpen) => this.#onMicrophone(isOpen),
      heard: (peak) => {
        this.level = Math.max(peak, this.level * LEVEL_FALL);
        this.wave.addHeard(peak);
      },
      spoken: (peak) => this.wave.addSpoken(peak),
      figures: (figures) => this.#onFigures(figures),
      firstSound: (ms) => this.#onFirstSound(ms),
    }, this.transcript);
    this.#listen();
    this.#onMode("open");
    new MutationObserver(() => this.#onTurns()).observe($("turns"), { childList: true });
    this.#onTurns();
  }

  setModels(models) {
    this.models = models;
  }

  enter() {
    this.isShown = true;
    this.#onLink(this.link);
    if (!isAllowedHere()) showFault(...INSECURE);
    this.talk.reconnect().catch(() => {}); // ready before it is needed; the link line tells if not
    requestAnimationFrame((nowMs) => this.#tick(nowMs));
  }

  leave() {
    this.isShown = false;
    $("retry").hidden = true;
    this.talk.interrupt();
    this.talk.closeMicrophone();
  }

  // The buttons

  #listen() {
    this.#listenToMicrophone();
    $("say").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = $("say-text").value.trim();
      if (!text) return;
      $("say-text").value = "";
      this.#try(() => this.talk.say(text)).then((isSent) => { if (!isSent) $("say-text").value = text; });
    });
    $("interrupt").addEventListener("click", () => this.talk.interrupt());
    $("forget").addEventListener("click", () => {
      this.talk.forget();
      $("say-text").focus();
    });
    $("retry").addEventListener("click", () => this.talk.reconnect().catch(() => {}));
    document.querySelectorAll("input[name=mode]").forEach((input) => {
      input.addEventListener("change", () => this.#onMode(input.value));
    });
    $("talk-model").addEventListener("change", () => {
      this.#showVoices($("talk-model").value, null);
      this.talk.choose({ model: $("talk-model").value, voice: $("talk-voice").value || undefined });
    });
    $("talk-voice").addEventListener("change", () => this.talk.choose({ voice: $("talk-voice").value }));
    document.addEventListener("keydown", (event) => this.#onKey(event));
    document.addEventListener("keyup", (event) => {
      if (event.code === "Space") this.#release();
    });
    window.addEventListener("blur", () => this.#release());
  }

  #listenToMicrophone() {
    const button = $("mic");
    button.addEventListener("click", () => {
      if (this.talk.mode === "open") this.#toggle();
      // A click without a press (screen readers): the first begins, the second ends.
      else if (!this.wasPressed) this.talk.isHolding ? this.#release() : this.#hold();
      this.wasPressed = false;
    });
    button.addEventListener("pointerdown", (event) => {
      if (this.talk.mode !== "hold" || event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      this.wasPressed = true;
      this.#hold();
    });
    for (const name of ["pointerup", "pointercancel"]) {
      button.addEventListener(name, () => { if (this.talk.mode === "hold") this.#release(); });
    }
    button.addEventListener("contextmenu", (event) => { if (this.talk.mode === "hold") event.preventDefault(); });
  }

  #onKey(event) {
    if (!this.isShown) return;
    if (event.key === "Escape" && this.talk.isBusy) {
      event.preventDefault();
      this.talk.interrupt();
      return;
    }
    const isWriting = event.target.matches("input[type=text], select, textarea");
    const isOther = event.target.matches("button, input") && event.target !== $("mic");
    if (event.code !== "Space" || this.talk.mode !== "hold" || isWriting || isOther) return;
    event.preventDefault();
    if (!event.repeat) this.#hold();
  }

  #hold() {
    this.isDown = true;
    this.#try(async () => {
      await this.talk.hold();
      if (!this.isDown) this.talk.release(); // it was let go while the browser still asked
    });
  }

  #release() {
    this.isDown = false;
    this.talk.release();
  }

  #toggle() {
    if (this.talk.microphone.isOpen) this.talk.closeMicrophone();
    else this.#try(() => this.talk.openMicrophone());
  }

  // Whether it could be done; else the page says why not.
  async #try(action) {
    hideFault();
    try {
      await action();
      return true;
    } catch (error) {
      this.isDown = false;
      if (error.hint === undefined) showFault("The server does not answer.", "It will be asked again; the line at the top tells when it is back.");
      else showFault(error.message, error.hint);
      return false;
    }
  }

  // What is shown

  #onMode(mode) {
    this.talk.setMode(mode);
    $("talk-keys").innerHTML = KEYS[mode];
    $("invitation-text").textContent = mode === "open" ? "Press Talk and say something." : "Hold the button and say something.";
    this.#onMicrophone(this.talk.microphone.isOpen);
  }

  #onMicrophone(isOpen) {
    const isHeld = this.talk.mode === "hold";
    show("mic-text", isHeld ? "Hold to talk" : isOpen ? "Mute" : "Talk");
    $("mic").setAttribute("aria-pressed", isHeld ? this.talk.isHolding : isOpen);
    $("mic").classList.toggle("on", isHeld ? this.talk.isHolding : isOpen);
  }

  #onPhase(name) {
    this.phase = name;
    show("phase", PHASES[name]);
    $("phase").dataset.phase = name;
    $("interrupt").disabled = !this.talk.isBusy;
    this.#onMicrophone(this.talk.microphone.isOpen);
  }

  #onLink(state) {
    this.link = state;
    if (!this.isShown) return;
    showLink(...linkWords(state));
    $("retry").hidden = !["retrying", "refused", "asleep"].includes(state.name);
  }

  #onSession(session) {
    const models = this.models.filter((model) => model.tasks.includes("converse"));
    fill($("talk-model"), models.map((model) => model.id));
    $("talk-model").value = session.model;
    $("talk-model-field").hidden = models.length < 2;
    this.#showVoices(session.model, session.audio.output.voice);
  }

  #showVoices(modelId, voice) {
    const voices = this.models.find((model) => model.id === modelId)?.voices ?? [];
    fill($("talk-voice"), voices);
    if (voice) $("talk-voice").value = voice;
    $("talk-voice-field").hidden = voices.length < 2;
  }

  #onFigures({ heldS, nUnderruns }) {
    show("talk-buffer", Math.round(heldS * 1000));
    show("talk-underruns", nUnderruns);
  }

  #onFirstSound(ms) {
    this.firstSoundsMs.push(ms);
    show("talk-ttfa", Math.round(ms));
    show("talk-median", Math.round(median(this.firstSoundsMs)));
  }

  #onTurns() {
    $("invitation").hidden = !this.transcript.isEmpty;
    $("forget").disabled = this.transcript.isEmpty;
  }

  // Drawing must not delay the decoding, which shares this thread: 30 pictures a second are enough.
  #tick(nowMs) {
    if (!this.isShown) return;
    if (nowMs - (this.drawnMs ?? 0) >= DRAW_EVERY_MS) {
      this.drawnMs = nowMs;
      this.wave.tick(nowMs);
      this.#showLevel();
    }
    requestAnimationFrame((nextMs) => this.#tick(nextMs));
  }

  #showLevel() {
    const db = Math.max(FLOOR_DB, 20 * Math.log10(this.level + 1e-9));
    $("level").style.transform = `scaleX(${(1 - db / FLOOR_DB).toFixed(3)})`;
    show("talk-level", this.talk.microphone.isOpen ? `${Math.round(db)}`.replace("-", "−") : "–");
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

function linkWords({ name, isAgain, waitMs, reason }) {
  switch (name) {
    case "connecting": return [isAgain ? "Reconnecting" : "Connecting", "busy"];
    case "open": return ["Connected", "open"];
    case "retrying": return [`${reason} Trying again${waitMs > 1500 ? ` in ${Math.round(waitMs / 1000)} s` : ""}.`, "lost"];
    case "refused": return [`Closed by the server${reason ? `: ${reason}` : ""}.`, "lost"];
    default: return ["Asleep", ""];
  }
}

// The page: reads the form, asks the server, shows what happens. Wire in speech.js, sound in player.js.

import { Player, canDecodeOpus } from "./player.js";
import { SpeechSocket } from "./speech.js";
import { Wave } from "./wave.js";

const PLAYOUT_REPORT_MS = 500;
const PCM_RATE_HZ = 48000;
const DRAW_EVERY_MS = 33;

const $ = (id) => document.getElementById(id);
const wave = new Wave($("wave"));
const hasOpus = canDecodeOpus();

let models = [];
let state = "idle"; // idle, waiting (asked, no sound yet), playing
let turn = null; // figures of the reply at hand
let lastReportMs = 0;
let lastDrawMs = 0;

const player = new Player({
  block: (peak, durationS) => wave.add(peak, durationS),
  ended: () => finish("Done."),
  fault: (message) => { halt(); showFault(message); },
});

const socket = new SpeechSocket({
  state: showLink,
  started: (event) => {
    turn.started = event;
    player.start(event);
  },
  frame: (frame) => {
    if (turn.ttfaMs === null) {
      turn.ttfaMs = performance.now() - turn.askedMs;
      enter("playing", "Speaking.");
    }
    turn.nBytes += frame.payload.length;
    turn.lastMs = performance.now();
    player.push(frame);
  },
  audioDone: (event) => {
    turn.audioS = event.n_samples / turn.started.sample_rate_hz;
    player.finish(event);
    showFigures();
  },
  done: (response) => {
    if (response.status === "failed" || response.status === "incomplete") {
      const details = response.status_details ?? {};
      const error = details.error ?? { message: `The reply is ${response.status}: ${details.reason ?? "no reason given"}.` };
      if (!turn.started) halt();
      showFault(error.message, retryHint(details.retry_after_s));
    } else if (!turn.started) {
      finish("There was nothing to say.");
    }
  },
  error: (error) => {
    if (state !== "idle") socket.cancel(); // nothing may be spoken with settings that were refused
    halt();
    showFault(error.message, error.code === "connection_lost" ? "Is the server still running? Speak again to reconnect." : "");
  },
});

// The form

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (state === "idle") speak();
  else stop();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (state !== "idle") stop();
    speak();
  } else if (event.key === "Escape" && state !== "idle") {
    event.preventDefault();
    stop();
  }
});

document.addEventListener("pointerdown", () => player.wake(), { once: true });
$("text").addEventListener("focus", () => {
  if (!socket.isOpen && models.length) socket.open().catch(() => {});
});
$("model").addEventListener("change", () => showModel(currentModel()));
$("speed").addEventListener("input", showSpeed);

async function speak() {
  const text = $("text").value.trim();
  hideFault();
  if (!text) {
    showFault("There is no text to speak.", "Type a sentence first.");
    $("text").focus();
    return;
  }
  const mine = { askedMs: performance.now(), ttfaMs: null, started: null, audioS: null, nBytes: 0, lastMs: 0 };
  turn = mine;
  wave.clear();
  enter("waiting", "Waiting for the first sound.");
  try {
    await player.wake();
    const session = await sessionSettings();
    if (turn !== mine || state !== "waiting") return;
    mine.askedMs = performance.now();
    await socket.speak(text, session);
  } catch {
    if (turn !== mine) return;
    halt();
    showFault("The server does not answer.", "Start it with: make serve");
  }
}

function stop() {
  socket.cancel();
  player.stop();
  finish("Stopped.");
}

function halt() {
  player.stop();
  enter("idle", "");
}

function finish(message) {
  showFigures();
  wave.draw(message === "Done." ? wave.totalS : wave.heardS);
  enter("idle", message);
}

async function sessionSettings() {
  const model = currentModel();
  const opus = await hasOpus;
  const session = { output: opus ? { codec: "opus" } : { codec: "pcm16", sample_rate_hz: PCM_RATE_HZ } };
  if (!model) return session;
  session.model = model.id;
  if (!$("voice-field").hidden) session.voice = $("voice").value;
  if (!$("speed-field").hidden) session.options = { speed: Number($("speed").value) };
  return session;
}

// What is shown

function enter(next, message) {
  state = next;
  $("status").textContent = message;
  $("go-text").textContent = next === "idle" ? "Speak" : "Stop";
  $("go").classList.toggle("stop", next !== "idle");
  if (next !== "idle") requestAnimationFrame(tick);
}

// Drawing must not delay the audio, which shares this thread: 30 pictures a second are enough.
function tick(nowMs) {
  if (state === "idle") return;
  if (nowMs - lastDrawMs >= DRAW_EVERY_MS) {
    lastDrawMs = nowMs;
    showFigures();
    if (state === "playing") {
      const heardS = player.heardS();
      wave.draw(heardS);
      if (nowMs - lastReportMs > PLAYOUT_REPORT_MS) {
        lastReportMs = nowMs;
        socket.reportPlayout(Math.round(heardS * 1000));
      }
    }
  }
  requestAnimationFrame(tick);
}

function show(id, text) {
  const element = $(id);
  if (element.textContent !== String(text)) element.textContent = text;
}

function showFigures() {
  if (!turn) return;
  const waitedMs = turn.ttfaMs ?? (state === "waiting" ? performance.now() - turn.askedMs : null);
  const audioS = turn.audioS ?? wave.totalS;
  const tookS = (turn.lastMs - turn.askedMs) / 1000;
  show("ttfa", waitedMs === null ? "–" : Math.round(waitedMs));
  show("seconds", audioS ? audioS.toFixed(1) : "–");
  show("pace", audioS && tookS > 0 ? (audioS / tookS).toFixed(1) : "–");
  show("rate", audioS ? Math.round((turn.nBytes * 8) / audioS / 1000) : "–");
  show("gaps", turn.started ? player.nGaps : "–");
}

function showLink(name) {
  const words = { connecting: "Connecting", open: "Connected", idle: "Asleep", closed: "Not connected" };
  $("link").className = `link ${name === "open" ? "open" : name === "closed" ? "lost" : ""}`;
  $("link-text").textContent = words[name];
}

function showFault(message, hint = "") {
  $("fault-text").textContent = message;
  $("fault-hint").textContent = hint;
  $("fault").hidden = false;
}

function hideFault() {
  $("fault").hidden = true;
}

function retryHint(retryAfterS) {
  return retryAfterS ? `The server is busy. Try again in ${Math.ceil(retryAfterS)} s.` : "";
}

// Models

function currentModel() {
  return models.find((model) => model.id === $("model").value) ?? models[0];
}

function fill(select, values) {
  select.replaceChildren(...values.map((value) => new Option(value, value)));
}

function showModel(model) {
  const voices = model.voices ?? [];
  const speed = (model.options ?? []).find((option) => option.name === "speed");
  fill($("voice"), voices);
  $("voice-field").hidden = voices.length < 2;
  $("speed-field").hidden = !speed;
  if (speed) {
    $("speed").min = speed.minimum ?? 0.5;
    $("speed").max = speed.maximum ?? 2;
    $("speed").value = speed.default ?? 1;
    showSpeed();
  }
  const licence = model.weights_licence && !model.weights_licence.startsWith("none") ? `, weights under ${model.weights_licence}` : "";
  $("about").textContent = `Spoken by the model ${model.id}${licence}.`;
}

function showSpeed() {
  $("speed-value").textContent = `${Number($("speed").value).toFixed(2)}×`;
}

async function loadModels() {
  try {
    const answer = await fetch("/v1/models");
    models = (await answer.json()).data;
  } catch {
    showLink("closed");
    showFault("The server does not answer.", "Start it with: make serve");
    return;
  }
  fill($("model"), models.map((model) => model.id));
  $("model-field").hidden = models.length < 2;
  if (models.length) showModel(models[0]);
  socket.open().catch(() => {}); // ready before it is needed; the link line tells if not
}

loadModels();

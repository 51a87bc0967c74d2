// The page: tabs, the models on offer, and the two parts that do the work.

import { fetchUnlocked } from "./key-page.js";
import { $, hideFault, showFault, showLink } from "./page.js";
import { Speak } from "./speak.js";
import { TalkPage } from "./talk-page.js";

const TABS = { talk: new TalkPage(), speak: new Speak() };
const NAMES = Object.keys(TABS);
let shown = null;

function showTab(name) {
  if (name === shown) return;
  if (shown) TABS[shown].leave();
  shown = name;
  hideFault();
  for (const one of NAMES) {
    const isShown = one === name;
    $(one).hidden = !isShown;
    $(`tab-${one}`).setAttribute("aria-selected", isShown);
    $(`tab-${one}`).tabIndex = isShown ? 0 : -1;
  }
  history.replaceState(null, "", name === NAMES[0] ? location.pathname : `#${name}`);
  TABS[name].enter();
}

NAMES.forEach((name) => {
  $(`tab-${name}`).addEventListener("click", () => showTab(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = NAMES[(NAMES.indexOf(name) + step + NAMES.length) % NAMES.length];
    showTab(next);
    $(`tab-${next}`).focus();
  });
});
$("fault-close").addEventListener("click", hideFault);

// A server without anybody to talk to still reads aloud.
function dropTab(name) {
  NAMES.splice(NAMES.indexOf(name), 1);
  $(`tab-${name}`).hidden = true;
  $(name).hidden = true;
}

async function loadModels() {
  try {
    const answer = await fetchUnlocked("/v1/models");
    const told = await answer.json();
    if (!answer.ok) {
      showLink("Not connected", "lost");
      showFault(`The server says: ${told.error.message}.`, "Load this page again in a while.");
      return;
    }
    const models = told.data;
    for (const tab of Object.values(TABS)) tab.setModels(models);
    if (!models.some((model) => model.tasks?.includes("converse"))) dropTab("talk");
    $("about").textContent = models.map(about).join(" ");
  } catch {
    showLink("Not connected", "lost");
    showFault("The server does not answer.", "Start it with: make serve");
  }
}

function about(model) {
  const licence = model.weights_licence;
  return `${model.id}${licence && !licence.startsWith("none") ? `, weights under ${licence}` : ""}.`;
}

// For the browser's console, and for tests.
globalThis.parley = TABS;

loadModels().then(() => showTab(NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : NAMES[0]));

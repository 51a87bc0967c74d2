// The form that asks for an API key, until the server accepts one.

import { hasKey, isKey, keepKey, keyHeaders } from "./key.js";
import { $, hideFault, show, showLink } from "./page.js";

// As `fetch`, once the server lets this page in.
export async function fetchUnlocked(path) {
  for (;;) {
    const answer = await fetch(path, { headers: keyHeaders() });
    if (answer.status !== 401) {
      showForm(false);
      return answer;
    }
    await askForKey(hasKey() ? "The server does not accept this key." : "");
  }
}

function askForKey(fault) {
  showForm(true);
  show("key-fault", fault);
  showLink("Locked", "");
  $("key").disabled = false;
  $("key").focus();
  return new Promise((resolve) => {
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      const text = $("key").value.trim();
      if (!isKey(text)) {
        show("key-fault", "A key has letters, digits and some signs, but no spaces.");
        return;
      }
      keepKey(text);
      $("key").value = "";
      $("key").disabled = true; // until the server has said what it thinks of this one
      resolve();
    };
  });
}

// The tabs that it takes the place of come back when one of them is shown.
function showForm(isShown) {
  $("key-form").hidden = !isShown;
  $("tabs").hidden = isShown;
  if (!isShown) return;
  hideFault();
  for (const panel of document.querySelectorAll("[role=tabpanel]")) panel.hidden = true;
}

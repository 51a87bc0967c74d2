// Small things that every part of the page does.

export const $ = (id) => document.getElementById(id);

// Text that is the same is not written: screen readers would say it again.
export function show(id, text) {
  const element = $(id);
  if (element.textContent !== String(text)) element.textContent = text;
}

export function fill(select, values) {
  select.replaceChildren(...values.map((value) => new Option(value, value)));
}

export function showFault(message, hint = "") {
  $("fault-text").textContent = message;
  $("fault-hint").textContent = hint;
  $("fault").hidden = false;
}

export function hideFault() {
  $("fault").hidden = true;
}

// `look`: "open", "busy", "lost" or "" (at rest).
export function showLink(text, look) {
  $("link").className = `link ${look}`;
  show("link-text", text);
}

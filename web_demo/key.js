// The server's API key, where it wants one: kept for this tab alone, never in a URL. Knows no page.

import { SUBPROTOCOL } from "./wire.js";

const NAME = "parley.key"; // in the tab's session storage
const KEY_SUBPROTOCOL = "openai-insecure-api-key."; // a page cannot set headers of a socket
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/; // what a subprotocol may be made of

export function hasKey() {
  return sessionStorage.getItem(NAME) !== null;
}

export function isKey(text) {
  return TOKEN.test(text);
}

export function keepKey(text) {
  sessionStorage.setItem(NAME, text);
}

export function keyHeaders() {
  return hasKey() ? { Authorization: `Bearer ${sessionStorage.getItem(NAME)}` } : {};
}

// What a socket offers; the server selects the first and never repeats the second.
export function subprotocols() {
  return hasKey() ? [SUBPROTOCOL, KEY_SUBPROTOCOL + sessionStorage.getItem(NAME)] : [SUBPROTOCOL];
}

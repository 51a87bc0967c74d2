// The list of turns. An answer's text is marked as far as it has been heard.

const PLACEHOLDER = "…";

export class Transcript {
  // `list` shows the turns, `announcer` is read out by screen readers: what was understood, and what
  // no voice has spoken.
  constructor(list, announcer) {
    this.list = list;
    this.announcer = announcer;
    this.turns = [];
  }

  get isEmpty() {
    return this.turns.length === 0;
  }

  find(itemId) {
    return this.turns.find((turn) => turn.itemId === itemId) ?? null;
  }

  // A turn of the user; without text it is still being heard.
  addUser(itemId, text = null) {
    const turn = this.#add("user", itemId, "You");
    if (text === null) turn.element.classList.add("pending");
    turn.text = text ?? "";
    turn.ahead.textContent = text ?? PLACEHOLDER;
    if (text !== null) turn.isDone = true;
    return turn;
  }

  extendUser(turn, delta) {
    turn.text += delta;
    turn.ahead.textContent = turn.text;
    this.#follow();
  }

  // An empty text: nobody spoke, so there was no turn.
  completeUser(turn, text) {
    turn.element.classList.remove("pending");
    turn.text = text.trim();
    turn.isDone = true;
    if (!turn.text) {
      this.remove(turn);
      return;
    }
    turn.ahead.textContent = turn.text;
    this.#announce(`You said: ${turn.text}`);
    this.#follow();
  }

  addAnswer(itemId) {
    const turn = this.#add("answer", itemId, "Parley");
    turn.marks = [[0, 0]]; // [ms of audio, characters spoken by then]
    turn.element.classList.add("pending");
    turn.ahead.textContent = PLACEHOLDER;
    return turn;
  }

  extendAnswer(turn, delta) {
    turn.text += delta;
    this.markHeard(turn, turn.heardMs);
    this.#follow();
  }

  addMark(turn, audioMs, nCharacters) {
    turn.marks.push([audioMs, nCharacters]);
  }

  // Marks the words that have sounded after `heardMs` of the answer.
  markHeard(turn, heardMs) {
    turn.heardMs = heardMs;
    if (turn.text) turn.element.classList.remove("pending");
    turn.nHeard = Math.max(turn.nHeard, wordEnd(turn.text, spokenCharacters(turn.marks, heardMs)));
    this.#showAnswer(turn);
  }

  // `how`: "heard" to its end, "cut" while it was spoken, "unspoken" (text alone).
  endAnswer(turn, how) {
    if (turn.isDone) return;
    turn.isDone = true;
    turn.element.classList.remove("pending");
    if (how !== "cut") turn.nHeard = turn.text.length;
    turn.element.classList.toggle("cut", how === "cut");
    this.#showAnswer(turn);
    if (!turn.text) this.remove(turn);
    else if (how === "cut") this.#announce("Interrupted.");
    else if (how === "unspoken") this.#announce(`Parley says: ${turn.text}`);
  }

  note(turn, text) {
    turn.note.textContent = text;
    this.#follow();
  }

  remove(turn) {
    this.turns = this.turns.filter((one) => one !== turn);
    turn.element.remove();
  }

  clear() {
    this.turns = [];
    this.list.replaceChildren();
  }

  // What was said, for a new session: [{role, text}], answers as far as they were heard.
  history() {
    const said = this.turns.map((turn) => (turn.kind === "user"
      ? { role: "user", text: turn.text }
      : { role: "assistant", text: turn.text.slice(0, turn.nHeard).trim() }));
    return said.filter(({ text }) => text);
  }

  #add(kind, itemId, name) {
    const element = document.createElement("li");
    element.className = `turn ${kind}`;
    element.innerHTML = '<span class="who"></span><p><span class="heard"></span><span class="ahead"></span></p><span class="note"></span>';
    element.querySelector(".who").textContent = name;
    const [heard, ahead, note] = [".heard", ".ahead", ".note"].map((one) => element.querySelector(one));
    const turn = { kind, itemId, element, heard, ahead, note, text: "", marks: [], heardMs: 0, nHeard: 0, isDone: false };
    this.turns.push(turn);
    this.list.append(element);
    this.#follow(true);
    return turn;
  }

  #showAnswer(turn) {
    const heard = turn.text.slice(0, turn.nHeard);
    const ahead = turn.text.slice(turn.nHeard);
    if (turn.heard.textContent !== heard) turn.heard.textContent = heard;
    if (turn.text && turn.ahead.textContent !== ahead) turn.ahead.textContent = ahead;
  }

  // Keeps the newest words in view, unless the reader has scrolled up.
  #follow(isNew = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.list;
    if (isNew || scrollHeight - scrollTop - clientHeight < 120) this.list.scrollTop = scrollHeight;
  }

  #announce(text) {
    this.announcer.textContent = text;
  }
}

// Between two marks the voice is taken to go on evenly.
export function spokenCharacters(marks, heardMs) {
  const next = marks.findIndex(([audioMs]) => audioMs > heardMs);
  if (next === 0) return 0;
  if (next === -1) return marks.at(-1)[1];
  const [[fromMs, nFrom], [toMs, nTo]] = [marks[next - 1], marks[next]];
  return nFrom + ((heardMs - fromMs) / (toMs - fromMs)) * (nTo - nFrom);
}

// The end of the word that the character falls into, with the space behind it.
export function wordEnd(text, nCharacters) {
  let end = Math.min(Math.floor(nCharacters), text.length);
  if (end === 0) return 0;
  while (end < text.length && !/\s/.test(text[end])) end += 1;
  while (end < text.length && /\s/.test(text[end])) end += 1;
  return end;
}

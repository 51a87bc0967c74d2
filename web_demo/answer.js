// One answer, from the server's first word of it until its last sound: what was said, how far it was
// heard, how long it took.

const REPORT_EVERY_MS = 250;

export class Answer {
  // `askedMs`: when the user began to wait. `tools`: { conversation, player, transcript }.
  constructor({ id, number }, askedMs, tools) {
    Object.assign(this, { id, number, askedMs, ...tools });
    this.itemId = null;
    this.turn = null;
    this.firstSoundMs = null;
    this.hasAudio = false;
    this.isMade = false; // the server has no more of it
    this.isOver = false; // nothing more of it is heard
    this.reportedMs = 0;
    this.conversation.listenTo(number);
  }

  addItem(item) {
    if (item.type !== "message" || this.turn) return;
    this.itemId = item.id;
    this.turn = this.transcript.addAnswer(item.id);
  }

  addText(itemId, delta) {
    this.addItem({ type: "message", id: itemId });
    this.transcript.extendAnswer(this.turn, delta);
  }

  addMark({ audio_ms: audioMs, n_characters: nCharacters }) {
    if (this.turn) this.transcript.addMark(this.turn, audioMs, nCharacters);
  }

  startAudio(started) {
    this.hasAudio = true;
    this.player.start(started);
  }

  // The loudspeaker has played on.
  onReport(figures) {
    const nowMs = performance.now();
    if (figures.playedS > 0 && this.firstSoundMs === null) {
      this.firstSoundMs = Math.max(0, nowMs - figures.playedS * 1000 - this.askedMs);
      if (this.turn) this.transcript.note(this.turn, `first sound after ${Math.round(this.firstSoundMs)} ms`);
    }
    if (this.turn) this.transcript.markHeard(this.turn, this.player.heardMs());
    if (nowMs - this.reportedMs >= REPORT_EVERY_MS) this.#report(this.player.heardMs());
  }

  // All has been heard.
  end() {
    if (this.isOver) return;
    this.isOver = true;
    this.#report(this.player.heardMs());
    if (this.turn) this.transcript.endAnswer(this.turn, "heard");
  }

  // The server has no more of it.
  made(response) {
    this.isMade = true;
    if (this.isOver) return;
    if (response.status === "cancelled") this.cut();
    else if (!this.hasAudio) this.#endUnspoken();
  }

  // Silence at once, and the server is told how much was heard. `isOurs`: it does not know yet.
  cut({ isOurs = false } = {}) {
    if (this.isOver) return;
    this.isOver = true;
    this.conversation.listenTo(null);
    const heardMs = this.hasAudio ? this.player.cut() : 0;
    if (this.hasAudio) this.#report(heardMs);
    if (isOurs && !this.isMade) this.conversation.send({ type: "response.cancel", response_id: this.id });
    if (isOurs && this.isMade && this.itemId) {
      this.conversation.send({
        type: "conversation.item.truncate", event_id: "cut", item_id: this.itemId, content_index: 0, audio_end_ms: Math.round(heardMs),
      });
    }
    if (this.turn) this.transcript.endAnswer(this.turn, "cut");
  }

  #endUnspoken() {
    this.isOver = true;
    if (this.turn) this.transcript.endAnswer(this.turn, "unspoken");
  }

  #report(heardMs) {
    this.reportedMs = performance.now();
    this.conversation.send({ type: "output_audio.playout", response_id: this.id, heard_ms: Math.round(heardMs) });
  }
}

"""A whole conversation: Chromium's microphone, the real models, and what the loudspeaker was given.

The user is eSpeak, Whisper base reads back what was heard. `PARLEY_TEST_URL` names a server that
runs already; else one is started.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import jiwer
import numpy as np
import pytest
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from loadtest.server_process import running_server
from tests.browser.conftest import ARTIFACTS, RATE_HZ
from tests.e2e.conftest import read_back

__all__ = ["read_back"]

pytestmark = pytest.mark.slow

QUESTIONS = ("What is the capital of Italy?", "How many days are there in a week?")
LONG = "Tell me a long story about a little dog that lives in a big house by the sea."
MAX_WER = 0.15
MAX_SILENCE_MS = 200.0
WATCHED_MS = 400
"""After the news of speech; the next answer cannot sound so soon."""
ANSWER_TIMEOUT_S = 90.0
"""Models on two busy cores."""
QUIET = 0.01
PHASE = "document.getElementById('phase').dataset.phase"
ANSWER = "parley.talk.talk.answer"
WATCH = """
globalThis.newsMs = []; // when the server said that somebody speaks
globalThis.loudMs = []; // when the microphone did
globalThis.heard = [];
globalThis.blocks = []; // [when it reached the page, samples heard by then]
globalThis.WebSocket = class extends WebSocket {
  constructor(...args) {
    super(...args);
    this.addEventListener("message", ({ data }) => {
      if (typeof data !== "string") return;
      const { type } = JSON.parse(data);
      if (type === "input_audio_buffer.speech_started" || type === "output_audio_buffer.cleared") {
        newsMs.push(performance.now());
      }
    });
  }
};
"""
TAP = """
parley.talk.talk.player.tap((block) => {
  heard.push(...block);
  blocks.push([performance.now(), heard.length]);
});
const { on } = parley.talk.talk.microphone;
const { level } = on;
on.level = (peak) => {
  if (peak > 0.1) loudMs.push(performance.now());
  level(peak);
};
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that converses with the models of a fresh installation."""
    given = os.environ.get("PARLEY_TEST_URL")
    if given:
        yield given
        return
    with running_server("--model", "pico") as started:
        yield started


@pytest.fixture
def talking(page, url):
    """The page, connected, its loudspeaker tapped."""
    page.allow(url)
    with page.before_scripts(WATCH):
        page.open(url)
    page.until("document.getElementById('link-text').textContent === 'Connected'")
    page.run(TAP)
    return page


def ask(page, record: Callable[..., None], question: str) -> None:
    """Say a question into the microphone and wait until the answer sounds."""
    record(question)
    page.click("mic")
    page.until(f"{PHASE} === 'hearing'")
    page.until(f"{PHASE} === 'speaking'", ANSWER_TIMEOUT_S)
    page.click("mic")


def answer_at_length(page) -> None:
    """Ask for a long answer by keyboard, and wait until it sounds."""
    page.run("document.getElementById('say-text').focus()")
    page.type(LONG)
    page.key("Enter", "Enter", text="\r")
    page.until(f"{ANSWER}?.firstSoundMs", ANSWER_TIMEOUT_S)


def heard(page) -> np.ndarray:
    """Every sample that went to the loudspeaker, `(n,)` at 48 kHz."""
    return np.array(page.run("heard.map((sample) => Math.round(sample * 1e4))")) / 1e4


def total(url: str, name: str) -> float:
    """A metric of the server, summed over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    values = [line.split()[-1] for line in lines if re.match(rf"{name}[{{ ]", line)]
    assert values, f"no metric {name}"
    return sum(map(float, values))


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never became so"
        time.sleep(0.05)


def note(**figures: object) -> None:
    """Keep figures beside the pictures."""
    path = ARTIFACTS / "conversation.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known | figures, indent=2) + "\n")


def test_spoken_questions_are_answered_by_voice(talking, record, read_back):
    page = talking
    said, first_sound_ms = [], []
    for question in QUESTIONS:
        ask(page, record, question)
        page.until(f"{ANSWER}.turn?.nHeard > 5 || {ANSWER}.isOver")
        page.run("scrollTo(0, 0)")
        page.screenshot(ARTIFACTS / f"conversation-{len(said)}.png")
        page.until(f"{ANSWER}.isOver", ANSWER_TIMEOUT_S)
        said.append(page.run(f"{ANSWER}.turn.text"))
        first_sound_ms.append(page.run(f"{ANSWER}.firstSoundMs"))
    roles = page.run("parley.talk.transcript.turns.map((turn) => turn.kind)")
    assert roles == ["user", "answer"] * len(QUESTIONS)
    assert page.run("parley.talk.transcript.turns.every((turn) => turn.text)")
    understood = read_back(heard(page).astype(np.float32), RATE_HZ)
    same_form = EnglishTextNormalizer({})  # "seven" and "7" are the same word
    word_errors = jiwer.wer(same_form(" ".join(said)), same_form(understood))
    note(said=said, read_back=understood, wer=word_errors, first_sound_ms=first_sound_ms)
    assert word_errors <= MAX_WER, (said, understood)
    assert page.console == []


def test_speaking_up_silences_the_answer(talking, record):
    page = talking
    answer_at_length(page)
    page.until(f"{ANSWER}.player.heardMs() > 1500")  # past the pause behind the first clause
    record("Stop, please. That is enough.", before_s=0.2)
    page.click("mic")
    page.until(f"newsMs.length || {ANSWER}.isOver")
    assert page.run("document.querySelectorAll('.turn.cut').length") == 1, (
        f"the answer ended before it could be interrupted: {page.said()}"
    )
    page.until(f"performance.now() > newsMs[0] + {WATCHED_MS}")
    page.click("mic")
    news_ms, loud_ms = page.run("newsMs[0]"), page.run("loudMs[0]")
    last_ms = last_loud_ms(heard(page), page.run("blocks"), news_ms + WATCHED_MS)
    # It may pause between two words.
    assert last_ms > loud_ms - 1000, "the answer was not to be heard when the user spoke up"
    note(
        barge_in_news_to_silence_ms=max(0.0, last_ms - news_ms),
        barge_in_speech_to_silence_ms=max(0.0, last_ms - loud_ms),
    )
    assert last_ms - news_ms < MAX_SILENCE_MS
    cut = "parley.talk.transcript.turns.find((turn) => turn.element.matches('.cut'))"
    assert 0 < page.run(f"{cut}.nHeard") < page.run(f"{cut}.text.length")


def test_a_reload_while_it_answers_frees_the_engine(talking, url):
    page = talking
    answer_at_length(page)
    assert total(url, "parley_sessions") == 1
    page.command("Page.reload")
    page.until("globalThis.parley !== undefined")
    page.until("document.getElementById('link-text').textContent === 'Connected'")
    for name in ("parley_streams", "parley_engine_n_active", "parley_engine_n_slots_used"):
        until(lambda name=name: total(url, name) == 0, 5)
    until(lambda: total(url, "parley_sessions") == 1, 5)


def test_what_is_said_while_the_button_is_held_is_answered(talking, record):
    page = talking
    page.run("document.querySelector('input[value=hold]').click()")
    record(QUESTIONS[0], before_s=0.2)
    page.press("mic")
    page.until("loudMs.length && performance.now() > loudMs.at(-1) + 300")
    page.lift()
    page.until(f"{PHASE} === 'speaking'", ANSWER_TIMEOUT_S)
    page.until(f"{ANSWER}.isOver", ANSWER_TIMEOUT_S)
    kinds = page.run("parley.talk.transcript.turns.map((turn) => turn.kind)")
    assert kinds == ["user", "answer"]
    assert "Italy" in page.run("parley.talk.transcript.turns[0].text")


def test_silence_is_not_answered(talking, record):
    page = talking
    record("", before_s=4.0)
    page.click("mic")
    page.until("parley.talk.talk.conversation.nSent > 200")
    page.click("mic")
    assert page.run("parley.talk.transcript.turns.length") == 0
    assert page.run("document.getElementById('fault').hidden")


def last_loud_ms(pcm: np.ndarray, blocks: list[list[float]], until_ms: float) -> float:
    """When the last block that sounds reached the page, of those before a time."""
    last_ms, from_sample = 0.0, 0
    for arrived_ms, to_sample in blocks:
        loudness = np.abs(pcm[from_sample : int(to_sample)]).max(initial=0.0)
        if arrived_ms < until_ms and loudness > QUIET:
            last_ms = arrived_ms
        from_sample = int(to_sample)
    return last_ms

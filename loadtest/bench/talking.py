"""Figures of a conversation, taken through the socket as any client would hear them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from realtime.audio.files import read_audio
from realtime.client.speech import SpeechClient
from realtime.client.talk import TalkClient
from realtime.client.talked import Exchange, NoAnswerError, Turn, end_of_sound

Pcm = npt.NDArray[np.float32]

QUESTIONS: Final = (
    "What is the capital of Italy?",
    "How many days are there in a week?",
    "What colour is the sky?",
    "Who wrote Romeo and Juliet?",
    "What do cows drink?",
    "Where does the sun rise?",
)
INTERRUPTION: Final = "Tell me a long story."
REPLY_STAGES: Final = ("text_model", "first_clause", "speech_model")
STAGES: Final = ("endpoint_wait", "speech_to_text", *REPLY_STAGES, "opus", "socket", "lead_in")
"""In order of time: from the last sound of the question to the first sound of the answer.

    endpoint_wait: until the server takes the turn for over
    speech_to_text: until the transcript is there
    text_model, first_clause, speech_model: until the first text, the first of it that can be
        spoken, the first samples
    opus: until the first packet goes out
    socket: both ways, and what the client waits for its turn to run
    lead_in: the silence that the speech begins with
"""
ANSWER_TIMEOUT_S: Final = 90.0
SETTLE_S: Final = 0.5
"""After an answer."""
MB: Final = 1e6
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A text, spoken: `pcm` `(n,)` float32 at `rate_hz`."""

    text: str
    pcm: Pcm
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A question and its answer; times in ms. `stages_ms` lacks stages that were not passed."""

    question: str
    heard: str
    answer: str
    ttfa_ms: float
    stages_ms: dict[str, float]

    def as_row(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Many turns in one session, and the server's resident size around them."""

    n_turns: int
    n_unanswered: int
    ttfa_ms: list[float]
    rss_before_mb: float | None
    rss_after_mb: float | None

    def as_row(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


async def say_questions(url: str) -> tuple[list[Question], str]:
    """All questions, the interruption last, and who speaks: eSpeak, else the server itself."""
    texts = [*QUESTIONS, INTERRUPTION]
    if shutil.which("espeak-ng"):
        return [await asyncio.to_thread(_by_espeak, text) for text in texts], "eSpeak NG"
    async with SpeechClient(url) as client:
        questions = []
        for text in texts:
            speech = await client.speak(text)
            pcm = await speech.pcm()
            questions.append(Question(text=text, pcm=pcm, rate_hz=speech.sample_rate_hz))
    return questions, "the server's own voice (espeak-ng is not installed)"


async def ask_all(url: str, questions: Sequence[Question], tick: Tick) -> list[Take]:
    """Each question in a conversation of its own, after one that warms up."""
    takes = []
    for question in (questions[0], *questions):
        async with TalkClient(url, rate_hz=question.rate_hz) as client:
            exchange = await client.ask(question.pcm, timeout_s=ANSWER_TIMEOUT_S)
            takes.append(_take(question, exchange, client.turns[-1]))
        tick()
    return takes[1:]


async def converse(
    url: str, questions: Sequence[Question], n_turns: int, tick: Tick
) -> Conversation:
    """`n_turns` questions in one conversation; each after the answer before."""
    process_id = _server_process()
    before_mb = _rss_mb(process_id)
    ttfa_ms: list[float] = []
    async with TalkClient(url, rate_hz=questions[0].rate_hz) as client:
        for number in range(n_turns):
            question = questions[number % len(questions)]
            exchange = await client.ask(question.pcm, timeout_s=ANSWER_TIMEOUT_S)
            if exchange.ttfa_s is not None:
                ttfa_ms.append(exchange.ttfa_s * 1000)
            await _listen(client, exchange)
            tick()
    return Conversation(
        n_turns=n_turns,
        n_unanswered=n_turns - len(ttfa_ms),
        ttfa_ms=ttfa_ms,
        rss_before_mb=before_mb,
        rss_after_mb=_rss_mb(process_id),
    )


async def _listen(client: TalkClient, exchange: Exchange) -> None:
    """Hear an answer out: whoever speaks sooner interrupts it."""
    answer = exchange.answer
    if answer.audio is None or answer.audio.log.first_s is None:
        return
    end_s = answer.audio.log.first_s + answer.n_samples / answer.sample_rate_hz
    async with client.silence():
        await asyncio.sleep(max(0.0, end_s - client.now_s()) + SETTLE_S)


def _take(question: Question, exchange: Exchange, turn: Turn) -> Take:
    if exchange.ttfa_s is None:
        raise NoAnswerError(f"no sound answered {question.text!r}")
    spans = _spans(question, exchange, turn)
    return Take(
        question=question.text,
        heard=exchange.question,
        answer=exchange.answer.text,
        ttfa_ms=exchange.ttfa_s * 1000,
        stages_ms={name: spans[name] for name in STAGES if name in spans},
    )


def _spans(question: Question, exchange: Exchange, turn: Turn) -> dict[str, float]:
    """Time of each stage that was passed, by what server and client counted."""
    timing, answer = exchange.answer.info.timing, exchange.answer
    spans: dict[str, float] = {}
    if timing is None:
        return spans
    if timing.transcript_ms is not None:
        spans["speech_to_text"] = timing.transcript_ms
    # The agent's times all count from the start of the reply: what lies between is each one's own.
    reply_ms = 0.0
    for name in REPLY_STAGES:
        if name in timing.stage_ms:
            spans[name] = timing.stage_ms[name] - reply_ms
            reply_ms = timing.stage_ms[name]
    if timing.ttfa_ms is not None:
        spans["opus"] = timing.ttfa_ms - (timing.transcript_ms or 0.0) - reply_ms
    if timing.endpoint_ms is None or turn.end_ms is None:
        return spans
    # The server hears the voice end a little later than its last sound; that is waited for, too.
    end_ms = end_of_sound(question.pcm) * 1000 / question.rate_hz
    spans["endpoint_wait"] = turn.end_ms - end_ms + timing.endpoint_ms
    if timing.ttfa_ms is not None and answer.audio is not None and answer.audio.log.first_s:
        first_frame_ms = (answer.audio.log.first_s - exchange.speech_end_s) * 1000
        spans["socket"] = first_frame_ms - spans["endpoint_wait"] - timing.ttfa_ms
        spans["lead_in"] = (exchange.ttfa_s or 0.0) * 1000 - first_frame_ms
    return spans


def _by_espeak(text: str) -> Question:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "question.wav"
        subprocess.run(["espeak-ng", "-w", str(path), text], check=True, capture_output=True)
        pcm, rate_hz = read_audio(path)
    return Question(text=text, pcm=pcm, rate_hz=rate_hz)


def _server_process() -> int | None:
    """The child of this process, which is the server; None where the system has no `/proc`."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold blanks; the parent is the second field behind it.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        if parent == os.getpid():
            return int(stat.parent.name)
    return None


def _rss_mb(process_id: int | None) -> float | None:
    if process_id is None:
        return None
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB

"""Figures of a conversation, taken through the socket as any client would hear them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from realtime.audio.files import read_audio
from realtime.client.speech import SpeechClient
from realtime.client.talk import TalkClient
from realtime.client.talked import AUDIBLE, Exchange, NoAnswerError

Pcm = npt.NDArray[np.float32]

QUESTIONS: Final = (
    "What is the capital of Italy?",
    "How many days are there in a week?",
    "What colour is the sky?",
    "Who wrote Romeo and Juliet?",
    "What do cows drink?",
    "Where does the sun rise?",
)
LONG: Final = "Tell me a long story about a little dog that lives in a big house by the sea."
STAGES: Final = ("endpoint_wait", "speech_to_text", "text_model", "first_clause", "speech_model")
ANSWER_TIMEOUT_S: Final = 90.0
HEARD_S: Final = 0.6
"""Of an answer, before it is interrupted."""
SETTLE_S: Final = 0.5
"""After an interruption; an old frame would have come by then."""
MB: Final = 1e6


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

    @property
    def rest_ms(self) -> float:
        """What no stage of the server's accounts for."""
        return self.ttfa_ms - sum(self.stages_ms.values())

    def as_row(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "rest_ms": self.rest_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class BargeIn:
    """An answer that was interrupted; times in ms.

    Args:
        detected_ms: first loud sample sent to news of speech.
        silenced_ms: news of speech to the order of silence.
        last_frame_ms: news of speech to the last frame of the old answer; 0: none came after.
    """

    detected_ms: float
    silenced_ms: float
    last_frame_ms: float

    def as_row(self) -> dict[str, float]:
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
    """All questions, the long one last, and who speaks them: eSpeak, else the server itself."""
    texts = [*QUESTIONS, LONG]
    if shutil.which("espeak-ng"):
        return [await asyncio.to_thread(_by_espeak, text) for text in texts], "eSpeak NG"
    async with SpeechClient(url) as client:
        questions = []
        for text in texts:
            speech = await client.speak(text)
            pcm = await speech.pcm()
            questions.append(Question(text=text, pcm=pcm, rate_hz=speech.sample_rate_hz))
    return questions, "the server's own voice (espeak-ng is not installed)"


async def ask_all(url: str, questions: Sequence[Question]) -> list[Take]:
    """Each short question in a conversation of its own, after one that warms up."""
    takes = []
    for question in (questions[0], *questions[:-1]):
        async with TalkClient(url, rate_hz=question.rate_hz) as client:
            exchange = await client.ask(question.pcm, timeout_s=ANSWER_TIMEOUT_S)
        takes.append(_take(question, exchange))
    return takes[1:]


async def barge_in(url: str, questions: Sequence[Question]) -> BargeIn:
    """Ask for a long answer and speak over it."""
    question, other = questions[-1], questions[0]
    async with TalkClient(url, rate_hz=question.rate_hz) as client:
        await client.send_paced(question.pcm)
        async with client.silence():
            await client.until(lambda: _sounds(client), ANSWER_TIMEOUT_S)
            await asyncio.sleep(HEARD_S)
        answer, n_turns = client.answers[-1], len(client.turns)
        onset_s = int(np.flatnonzero(np.abs(other.pcm) > AUDIBLE)[0]) / other.rate_hz
        begun_s = await client.send_paced(other.pcm)
        await asyncio.sleep(SETTLE_S)
        if len(client.turns) == n_turns or answer.cleared_s is None:
            raise NoAnswerError("an answer was over before it could be interrupted")
        started_s = client.turns[n_turns].started_s
        return BargeIn(
            detected_ms=(started_s - begun_s - onset_s) * 1000,
            silenced_ms=max(0.0, answer.cleared_s - started_s) * 1000,
            last_frame_ms=max(0.0, (answer.last_frame_s or 0.0) - started_s) * 1000,
        )


async def converse(url: str, questions: Sequence[Question], n_turns: int) -> Conversation:
    """`n_turns` short questions in one conversation; each after the answer before."""
    process_id = _server_process()
    before_mb = _rss_mb(process_id)
    ttfa_ms: list[float] = []
    async with TalkClient(url, rate_hz=questions[0].rate_hz) as client:
        for number in range(n_turns):
            question = questions[number % (len(questions) - 1)]
            exchange = await client.ask(question.pcm, timeout_s=ANSWER_TIMEOUT_S)
            if exchange.ttfa_s is not None:
                ttfa_ms.append(exchange.ttfa_s * 1000)
            await _listen(client, exchange)
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


def _sounds(client: TalkClient) -> bool:
    return bool(client.answers) and client.answers[-1].first_sound_s is not None


def _take(question: Question, exchange: Exchange) -> Take:
    if exchange.ttfa_s is None:
        raise NoAnswerError(f"no sound answered {question.text!r}")
    timing = exchange.answer.info.timing
    stages = {} if timing is None else timing.stage_ms
    spans: dict[str, float | None] = {
        "endpoint_wait": None if timing is None else timing.endpoint_ms,
        "speech_to_text": None if timing is None else timing.transcript_ms,
    }
    # The agent's times all count from the start of the reply: what lies between is each one's own.
    before_ms = 0.0
    for name in STAGES[2:]:
        if name in stages:
            spans[name] = stages[name] - before_ms
            before_ms = stages[name]
    return Take(
        question=question.text,
        heard=exchange.question,
        answer=exchange.answer.text,
        ttfa_ms=exchange.ttfa_s * 1000,
        stages_ms={name: span for name, span in spans.items() if span is not None},
    )


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

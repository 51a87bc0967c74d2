"""How fast the agent falls silent when it is spoken to: answers interrupted one after another."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from loadtest.bench.talking import ANSWER_TIMEOUT_S, Question, Tick
from realtime.client.talk import TalkClient
from realtime.client.talked import AUDIBLE, Answer, NoAnswerError, Turn

HEARD_S: Final = 0.6
"""Of an answer, before it is interrupted."""
DECISION_MS: Final = 480
"""From the start of an interrupting turn to the last sample that the decision rests on: 320 ms of
padding, and 160 ms of a voice (docs/conversation.md)."""
LIMIT_S: Final = 200.0
"""For all takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BargeIn:
    """An answer that was interrupted; times in ms, at the client.

    Args:
        heard_ms: first loud sample of the interruption sent to the order of silence.
        decided_ms: the sample by which the server can know that it is one to the order of silence.
        last_frame_ms: order of silence to the last frame of the old answer; 0: none came after.
    """

    heard_ms: float
    decided_ms: float
    last_frame_ms: float

    def as_row(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


async def barge_in(url: str, question: Question, n_takes: int, tick: Tick) -> list[BargeIn]:
    """Ask, and ask again as soon as the answer is heard, in one conversation.

    Returns:
        Up to `n_takes`: what is not done within `LIMIT_S` is left out, and so are answers that
        were over before they could be interrupted.

    Raises:
        NoAnswerError: none was interrupted.
    """
    cuts: list[BargeIn] = []
    async with TalkClient(url, rate_hz=question.rate_hz) as client:
        end_s = client.now_s() + LIMIT_S
        await client.send_paced(question.pcm)
        while len(cuts) < n_takes and client.now_s() < end_s:
            answer = await _next_answer(client)
            n_turns, before_ms = len(client.turns), client.sent_ms
            begun_s = await client.send_paced(question.pcm)
            if answer.cleared_s is not None and len(client.turns) > n_turns:
                turn = client.turns[n_turns]
                cuts.append(_cut(question, answer, turn, begun_s, before_ms))
                tick()
    if not cuts:
        raise NoAnswerError("no answer lasted long enough to be interrupted")
    return cuts


async def _next_answer(client: TalkClient) -> Answer:
    """The answer to what was said last, once some of it has been heard."""
    n_answers = len(client.answers)

    def sounds() -> bool:
        return len(client.answers) > n_answers and client.answers[-1].first_sound_s is not None

    async with client.silence():
        await client.until(sounds, ANSWER_TIMEOUT_S)
        await asyncio.sleep(HEARD_S)
    return client.answers[-1]


def _cut(
    question: Question, answer: Answer, turn: Turn, begun_s: float, before_ms: float
) -> BargeIn:
    assert answer.cleared_s is not None, "the caller has looked"
    onset_s = int(np.flatnonzero(np.abs(question.pcm) > AUDIBLE)[0]) / question.rate_hz
    decision_s = (turn.start_ms + DECISION_MS - before_ms) / 1000
    return BargeIn(
        heard_ms=(answer.cleared_s - begun_s - onset_s) * 1000,
        decided_ms=(answer.cleared_s - begun_s - decision_s) * 1000,
        last_frame_ms=max(0.0, (answer.last_frame_s or 0.0) - answer.cleared_s) * 1000,
    )

"""Requests to prompts: `plan` of `glm4-voice`. Worker thread; weights only of what hears.

    [gMASK] <sop> <|system|> instructions, then rounds:
    <|user|> text or speech tokens <|assistant|> streaming_transcription, text and speech in turn

A conversation goes on from the rows of an earlier answer as they were drawn, the model's own
speech among them. What came after it, or all of it where there is none, is told in words, and in
speech where the user's audio is still there. Where a conversation grows too long its oldest rounds
are left out, half a budget at a time, so that prompts of successive turns begin alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from models.audio.mel import WHISPER_RATE_HZ
from models.audio.sound import Sound
from models.audio.spoken import MOST_S, NAME, read_spoken
from models.base import PromptPlan
from models.errors import PlanError
from models.glm4_voice.config import (
    COLUMN,
    MOST_ROWS,
    SPEECH_RUN,
    STATE_SIZE,
    TEMPERATURE,
    TEXT_RUN,
    TOP_P,
    GlmIds,
)
from models.glm4_voice.tokenizer import GlmTokenizer
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options
from models.spec import Message, ModelSpec, OptionValue, PlanRequest, SamplingParams

TASK: Final = (
    "User will provide you with a {kind} instruction. Do it step by step. First, think about the "
    f"instruction and respond in a interleaved manner, with {TEXT_RUN} text token followed by "
    f"{SPEECH_RUN} audio tokens."
)
"""Word for word as the checkpoint was tuned on it. Source: `web_demo.py`."""
ANSWER: Final = "streaming_transcription\n"
PREFIX: Final = "talk"
ROOM_SHARE: Final = 4
"""One position in so many is left for the answer before rounds are left out."""

Hear = Callable[[Sound], Sequence[int]]
Round = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes parts of prompts.

    Args:
        ids: with a meaning.
        tokenizer: of text.
        hear: speech tokens of sound.
    """

    ids: GlmIds
    tokenizer: GlmTokenizer
    hear: Hear

    def opening(self, instructions: str, *, is_spoken: bool) -> list[int]:
        """What comes before the first round."""
        # A blank stands behind it where the user speaks.
        task = TASK.format(kind="speech") + " " if is_spoken else TASK.format(kind="text")
        text = f"\n{instructions.strip()}\n{task}" if instructions.strip() else f"\n{task}"
        return [*self.ids.opening, self.ids.system, *self.tokenizer.encode(text)]

    def asked(self, text: str, sound: Sound | None) -> Round:
        """What the user says."""
        if sound is None:
            return [self.ids.user, *self.tokenizer.encode(f"\n{text}")]
        codes = [self.ids.first_code + code for code in self.hear(sound)]
        heard = [self.ids.sound_start, *codes, self.ids.sound_end]
        return [self.ids.user, *self.tokenizer.encode("\n"), *heard, *self.tokenizer.encode(text)]

    def answer(self, text: str = "") -> list[int]:
        """The opening of an answer, and one that is known in words alone."""
        return [self.ids.assistant, *self.tokenizer.encode(ANSWER), *self.tokenizer.encode(text)]


def plan(request: PlanRequest, spec: ModelSpec, writer: Writer) -> PromptPlan:
    """The conversation to go on with.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
            `empty_text`, `prompt_too_long`, and what `models.audio.spoken` raises.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    before, newest = _rounds(request, options, writer)
    told = " ".join(one.text for one in request.messages if one.role == "system")
    most = spec.backbone.max_positions
    n_other = len(newest) + len(writer.opening(told, is_spoken=True))
    kept = before[_n_left_out(before, most - most // ROOM_SHARE - n_other) :]
    rounds = [*kept, newest]
    opening = writer.opening(told, is_spoken=writer.ids.sound_start in rounds[0])
    rows = [*opening, *(idx for one in rounds for idx in one)]
    n_left = most - len(rows) - 1
    n_least = least_frames(spec) * (TEXT_RUN + SPEECH_RUN) // SPEECH_RUN
    if n_left < n_least:
        message = f"the prompt has {len(rows)} rows, at most {most - n_least - 1} are accepted"
        raise PlanError("prompt_too_long", f"{message}: shorten what is asked", "messages")
    n_rows = min(n_left, MOST_ROWS)
    return PromptPlan(
        ids=torch.tensor(rows).unsqueeze(1),
        state=torch.zeros(STATE_SIZE, dtype=torch.int64),
        max_frames=min(n_rows, frame_limit(request, spec, None)),
        max_rows=n_rows,
        sampling={COLUMN: _sampling(options)},
        prefix_key=PREFIX,
        prefix_rows=len(rows),
    )


def _rounds(
    request: PlanRequest, options: Mapping[str, OptionValue], writer: Writer
) -> tuple[list[Round], Round]:
    """Rounds before, and the one to be answered. Raises: `PlanError`."""
    sound = read_spoken(request, options, WHISPER_RATE_HZ, most_s=MOST_S)
    messages = [one for one in request.messages if one.role != "system"]
    text = request.text
    if sound is None and not text.strip() and messages and messages[-1].role == "user":
        text, sound = messages[-1].text, _sound_of(messages.pop(), request)
    if sound is None and not text.strip():
        raise PlanError("empty_text", f"there is nothing to answer: no text, no {NAME}", "text")
    rounds = _cut(request.history, writer.ids.user)
    for one in messages:
        if one.role == "user":
            rounds.append(writer.asked(one.text, _sound_of(one, request)))
        elif rounds:
            rounds[-1] += writer.answer(one.text)
    return rounds, [*writer.asked(text, sound), *writer.answer()]


def _cut(history: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None, user: int) -> list[Round]:
    """Rounds of the rows of a conversation, without what is before the first."""
    if history is None:
        return []
    ids = history[:, 0]
    starts = np.flatnonzero(ids == user)
    return [part.tolist() for part in np.split(ids, starts)[1:]]


def _sound_of(message: Message, request: PlanRequest) -> Sound | None:
    """What the user said then, where it is still there and is not silent."""
    if message.audio is None:
        return None
    asked = replace(request, audio=message.audio)
    try:
        return read_spoken(asked, {}, WHISPER_RATE_HZ, most_s=MOST_S)
    except PlanError:
        return None


def _n_left_out(rounds: Sequence[Round], budget: int) -> int:
    """How many of the oldest rounds are left out so that the others fit."""
    most = max(budget, 1)
    excess = sum(map(len, rounds)) - most
    if excess <= 0:
        return 0
    wanted, gone = excess + most // 2, 0
    for n_rounds, one in enumerate(rounds):
        if gone >= wanted:
            return n_rounds
        gone += len(one)
    return len(rounds)


def _sampling(options: Mapping[str, OptionValue]) -> SamplingParams:
    return SamplingParams(
        temperature=float(options[TEMPERATURE.name]), top_p=float(options[TOP_P.name])
    )

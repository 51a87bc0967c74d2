"""Requests to prompts: `plan` of `opuslm` and `opuslm-dialogue`. Worker thread, no weights.

A row's first column holds marks, text and units, the others codes. A segment is a mark and what it
announces; behind it stand as many blank rows as a frame is delayed, so that its codes end there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.base import PromptPlan
from models.errors import PlanError
from models.layers.delay import NEVER
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.opuslm.config import OpusLmConfig, OpusLmIds
from models.opuslm.facts import (
    AUDIO,
    DRAIN,
    END,
    MAX_ROWS,
    MOST,
    MOST_TEXT,
    PAST,
    TEMPERATURE,
    TEXT,
    TOP_K,
    speech_sampling,
)
from models.spec import Message, ModelSpec, OptionValue, PlanRequest, SamplingParams

NO_REFERENCE: Final = (
    "voices of reference audio, and audio to be answered, need units that XEUS and its clusters "
    "find; these are not part of the checkpoint, and are not known here"
)


def plan(
    request: PlanRequest,
    spec: ModelSpec,
    config: OpusLmConfig,
    tokenizer: Tokenizer,
    voices: Mapping[str, Tensor],
) -> PromptPlan:
    """The text to speak; or, for the dialogue model, the conversation to go on with.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `invalid_reference` (audio), `empty_text`, `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    voice = voices.get(check_voice(spec, request.voice) or "")
    if request.audio is not None:
        raise PlanError("invalid_reference", NO_REFERENCE, "audio")
    writer = _Writer(config, tokenizer)
    make = _plan_answer if config.is_dialogue else _plan_speech
    return make(request, spec, writer, voice, _sampling(spec, options))


def bridge(ids: OpusLmIds, n_blank: int) -> list[int]:
    """The first column between the text of an answer and its frames."""
    return [*[ids.pad] * n_blank, ids.assistant, ids.speech]


class _Writer:
    """Writes rows of prompts, without delay."""

    def __init__(self, config: OpusLmConfig, tokenizer: Tokenizer) -> None:
        self.ids = config.ids
        self.n_columns = config.n_columns
        self.n_blank = config.n_columns - 1
        self._low = config.text[0]
        self._tokenizer = tokenizer

    def words(self, text: str) -> list[int]:
        """Ids of a text. The tokenizer's id 0 is written as a blank.

        Source: ESPnet's preprocessor, which takes every 0 for a blank before it shifts ids; so the
        checkpoint has seen it.
        """
        found = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.ids.pad if one == 0 else self._low + one for one in found]

    def column(self, *firsts: int) -> Tensor:
        """Rows `(n, K)` with blanks beside `firsts`."""
        rows = torch.full((len(firsts), self.n_columns), self.ids.pad)
        rows[:, 0] = torch.tensor(firsts, dtype=torch.int64)
        return rows

    def segment(self, *firsts: int, voice: Tensor | None = None) -> Tensor:
        """What a mark announces, and the blanks behind it."""
        parts = [self.column(*firsts), self.column(*[self.ids.pad] * self.n_blank)]
        if voice is not None:
            parts.insert(1, voice)
        return torch.cat(parts)

    def delayed(self, segments: Sequence[Tensor]) -> Tensor:
        """The prompt: column n of all rows n rows later. Its last rows hold no codes to be cut."""
        rows = torch.cat([*segments])
        for n in range(1, self.n_columns):
            rows[:, n] = rows[:, n].roll(n)
        return rows


def _plan_speech(
    request: PlanRequest,
    spec: ModelSpec,
    writer: _Writer,
    voice: Tensor | None,
    sampling: dict[str, SamplingParams],
) -> PromptPlan:
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    ids, text = writer.ids, writer.words(request.text)
    task = ids.plain_speech if voice is None else ids.voiced_speech
    segments = [writer.segment(ids.end, task, ids.text, *text)]
    if voice is not None:
        segments.append(writer.segment(ids.voice, voice=voice))
    rows = writer.delayed([*segments, writer.column(ids.speech)])
    n_most = spec.backbone.max_positions - len(rows) - writer.n_columns
    if n_most < least_frames(spec):
        n_rows = spec.backbone.max_positions - least_frames(spec) - writer.n_columns
        message = f"the prompt has {len(rows)} rows, at most {n_rows} are accepted: split it"
        raise PlanError("prompt_too_long", message, "text")
    n_frames = min(n_most, MAX_ROWS - writer.n_blank, frame_limit(request, spec, len(text)))
    return PromptPlan(
        ids=rows,
        state=_start(spec, AUDIO, n_frames=n_frames, n_text=0, pad=ids.pad),
        max_frames=n_frames,
        sampling=sampling,
    )


def _plan_answer(
    request: PlanRequest,
    spec: ModelSpec,
    writer: _Writer,
    voice: Tensor | None,
    sampling: dict[str, SamplingParams],
) -> PromptPlan:
    ids, messages = writer.ids, list(request.messages)
    if request.text.strip():
        messages.append(Message(role="user", text=request.text))
    if not messages or messages[-1].role != "user" or not messages[-1].text.strip():
        raise PlanError("empty_text", "there is nothing to answer", "text")
    segments = [writer.column(ids.end, ids.text_dialogue)]
    if voice is not None:
        segments.append(writer.segment(ids.system, ids.voice, voice=voice))
    n_shared = sum(map(len, segments))
    segments += [part for one in messages if (part := _message(one, writer)) is not None]
    rows = writer.delayed([*segments, writer.column(ids.assistant, ids.text)])
    n_between = len(bridge(ids, writer.n_blank)) + 1 + writer.n_columns
    n_left = spec.backbone.max_positions - len(rows) - n_between
    n_text = min(n_left // 2, MAX_ROWS - writer.n_blank)
    n_frames = min(n_left - n_text, MAX_ROWS - writer.n_blank)
    if n_frames < least_frames(spec):
        n_rows = spec.backbone.max_positions - n_between - 2 * least_frames(spec)
        fault = f"the conversation has {len(rows)} rows, at most {n_rows} are accepted: "
        raise PlanError("prompt_too_long", fault + "leave out the oldest messages", "messages")
    n_frames = min(n_frames, frame_limit(request, spec, None))
    return PromptPlan(
        ids=rows,
        state=_start(spec, TEXT, n_frames=n_frames, n_text=n_text, pad=ids.pad),
        max_frames=n_frames,
        sampling=sampling,
        prefix_key=None if voice is None else "voice",
        prefix_rows=0 if voice is None else n_shared,
    )


def _message(message: Message, writer: _Writer) -> Tensor | None:
    """One message as text; an answer has an end, as the model wrote it. A system prompt is none.

    Source: ESPnet's dialogues have system prompts for voices alone.
    """
    ids, text = writer.ids, writer.words(message.text)
    if message.role == "system" or not text:
        return None
    if message.role == "user":
        return writer.segment(ids.user, ids.text, *text)
    return writer.segment(ids.assistant, ids.text, *text, ids.end)


def _start(spec: ModelSpec, phase: int, *, n_frames: int, n_text: int, pad: int) -> Tensor:
    """A stream's state before its first row."""
    state = torch.zeros(spec.state_size, dtype=torch.int64)
    state[0], state[END], state[MOST], state[MOST_TEXT] = phase, NEVER, n_frames, n_text
    state[PAST:] = pad
    return state


def _sampling(spec: ModelSpec, options: dict[str, OptionValue]) -> dict[str, SamplingParams]:
    """What is asked for holds for the frames; text is written as the model's defaults say."""
    asked = speech_sampling(float(options[TEMPERATURE.name]), int(options[TOP_K.name]))
    phases = (spec.phases[AUDIO], spec.phases[DRAIN])
    return {f"{phase.name}.{column.name}": asked for phase in phases for column in spec.columns}

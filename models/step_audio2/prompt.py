"""Requests to prompts: `plan` of `step-audio2`. Worker thread; what is heard takes weights.

A text alone is read out; what is heard, or a conversation, is answered. Messages are
`<|BOT|>role`, a line break, what is said, `<|EOT|>`; the last one is the model's, opened with
`<tts_start>`. Of earlier answers the words are told, and not their codes.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `stepaudio2.py`, `apply_chat_template`; its examples
for the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.audio.mel import WHISPER_RATE_HZ
from models.audio.sound import Pcm, Sound
from models.audio.spoken import NAME, read_spoken
from models.base import PromptPlan
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options
from models.spec import Message, ModelSpec, OptionValue, PlanRequest, SamplingParams
from models.step_audio2.config import StepIds
from models.step_audio2.facts import (
    COLUMN,
    MAX_ROWS,
    MOST_HEARD_S,
    SPEECH,
    STATE_SIZE,
    TEMPERATURE,
    TOP_P,
    sampling,
)
from models.text.scripts import unspeakable_scripts

ROLES: Final = {"system": "system", "user": "human", "assistant": "assistant"}
INSTRUCTIONS: Final = "You are a helpful assistant."
READ_OUT: Final = {
    "zh": "以自然的语速读出下面的文字。\n",
    "": "Read this paragraph at a natural pace.\n",
}
"""What the system says where a text is to be read out, by its language."""
KANA: Final = frozenset({"Hiragana", "Katakana"})
PROMPT_ROWS: Final = 2048
"""Rows of a conversation at most; the oldest messages are left out."""
ROWS_PER_FRAME: Final = 2
SPARE_ROWS: Final = 64
"""Rows of text and codes together, at most; a row of text comes to about four codes."""

Hear = Callable[[Pcm], Iterator[Tensor]]
"""PCM at 16 kHz to the rows of its pieces."""
Voiced = Callable[[PlanRequest, Mapping[str, OptionValue]], Mapping[str, Tensor]]
"""The codec state in which a request's voice begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A part of a prompt: ids `(n,)`, and rows `(m, H)` that stand where ids are patches."""

    ids: Tensor
    heard: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


class Writer:
    """Writes messages.

    Args:
        ids: with a meaning.
        tokenizer: of the text.
        hear: what is heard.
    """

    def __init__(self, ids: StepIds, tokenizer: Tokenizer, hear: Hear) -> None:
        self.ids = ids
        self._tokenizer = tokenizer
        self._hear = hear
        marks = [tokenizer.id_to_token(idx) for idx in ids.marks]
        self._marks = [name for name in marks if name]

    def message(self, role: str, text: str, heard: Sound | None = None) -> Rows:
        """One message, what is written before what is heard."""
        said = self._words(f"{ROLES[role]}\n{self._plain(text)}")
        column, rows = [self.ids.turn, *said], []
        for piece in () if heard is None else self._hear(heard.pcm):
            column += [self.ids.hearing, *[self.ids.patch] * len(piece), self.ids.heard]
            rows.append(piece)
        return Rows(ids=torch.tensor([*column, self.ids.end]), heard=tuple(rows))

    def opening(self) -> Rows:
        """The beginning of the model's own message."""
        said = self._words(f"{ROLES['assistant']}\n")
        return Rows(ids=torch.tensor([self.ids.turn, *said, self.ids.speaking]))

    def _words(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def _plain(self, text: str) -> str:
        """Text without marks: what somebody says opens no message."""
        if "<" in text:
            for name in self._marks:
                text = text.replace(name, " ")
        return text


def plan(request: PlanRequest, spec: ModelSpec, writer: Writer, voiced: Voiced) -> PromptPlan:
    """The text to read out, or the conversation to go on with.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
            `empty_text`, `prompt_too_long`, those of `models.audio.spoken.read_spoken`, and those
            of `voiced`.
    """
    options = check_options(spec, request.options)
    language = check_language(spec, request.language)
    sound = read_spoken(request, options, WHISPER_RATE_HZ, most_s=MOST_HEARD_S)
    if sound is None and not request.messages:
        before, asked, n_text = _reading(request, language, writer)
    else:
        before, asked = _conversation(request, sound, writer)
        n_text = None
    rows = [*before, asked, writer.opening()]
    n_rows = sum(map(len, rows))
    n_left = spec.backbone.max_positions - n_rows
    if n_left < ROWS_PER_FRAME * least_frames(spec):
        most = spec.backbone.max_positions - ROWS_PER_FRAME * least_frames(spec)
        param = "text" if sound is None else NAME
        message = f"the prompt has {n_rows} rows, at most {most} are accepted: split it"
        raise PlanError("prompt_too_long", message, param)
    n_frames = min(n_left, MAX_ROWS, frame_limit(request, spec, n_text))
    embeds, mask = _heard_rows(rows, writer.ids.patch)
    return PromptPlan(
        ids=torch.cat([part.ids for part in rows]).unsqueeze(1),
        embeds=embeds,
        embed_mask=mask,
        state=torch.full((STATE_SIZE,), SPEECH),
        max_frames=n_frames,
        max_rows=min(MAX_ROWS, ROWS_PER_FRAME * n_frames + SPARE_ROWS),
        sampling=_sampling(options),
        codec_state=voiced(request, options),
        prefix_key=spec.name,
        prefix_rows=sum(map(len, before)),
    )


def _reading(
    request: PlanRequest, language: str | None, writer: Writer
) -> tuple[list[Rows], Rows, int]:
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    # Where no language is asked for, the text shows it.
    scripts = set() if request.language else set(unspeakable_scripts(request.text))
    if "Han" in scripts and scripts.isdisjoint(KANA):
        language = "zh"
    told = READ_OUT.get(language or "", READ_OUT[""])
    asked = writer.message("user", request.text)
    return [writer.message("system", told)], asked, len(asked)


def _conversation(
    request: PlanRequest, sound: Sound | None, writer: Writer
) -> tuple[list[Rows], Rows]:
    told = [one.text for one in request.messages if one.role == "system" and one.text.strip()]
    opening = writer.message("system", "\n".join(told) or INSTRUCTIONS)
    said = [one for one in request.messages if one.role != "system"]
    asked: Rows | None = None
    if request.text.strip() or sound is not None:
        asked = writer.message("user", request.text, sound)
    elif said and said[-1].role == "user":
        asked = _said(said.pop(), request, writer)
    if asked is None:
        raise PlanError("empty_text", "there is nothing to answer", "text")
    before: list[Rows] = []
    n_left = PROMPT_ROWS - len(opening) - len(asked)
    # From the newest on: what no longer fits is not listened to either.
    while said and n_left > 0:
        rows = _said(said.pop(), request, writer)
        n_left -= 0 if rows is None else len(rows)
        if rows is not None and n_left >= 0:
            before.insert(0, rows)
    return [opening, *before], asked


def _said(message: Message, request: PlanRequest, writer: Writer) -> Rows | None:
    """A message; None where nothing was said."""
    heard = _heard_then(message, request)
    if heard is None and not message.text.strip():
        return None
    return writer.message(message.role, message.text, heard)


def _heard_then(message: Message, request: PlanRequest) -> Sound | None:
    """What the user said in an earlier turn, where it is still there and is not silent."""
    if message.audio is None:
        return None
    try:
        asked = replace(request, audio=message.audio)
        return read_spoken(asked, {}, WHISPER_RATE_HZ, most_s=MOST_HEARD_S)
    except PlanError:
        return None


def _heard_rows(parts: Sequence[Rows], patch: int) -> tuple[Tensor | None, Tensor | None]:
    """Rows `(T, H)` that replace the table's, and where, `(T,)`; None where nothing is heard."""
    heard = [rows for part in parts for rows in part.heard]
    if not heard:
        return None, None
    mask = torch.cat([part.ids for part in parts]) == patch
    embeds = torch.zeros(len(mask), heard[0].shape[1])
    embeds[mask] = torch.cat(heard)
    return embeds, mask


def _sampling(options: dict[str, OptionValue]) -> dict[str, SamplingParams]:
    drawn = sampling(float(options[TEMPERATURE.name]), float(options[TOP_P.name]))
    return {COLUMN: drawn}

"""Requests to prompts: `plan` and `extend` of `cosyvoice2`. Worker thread, touches no weights.

    start, words of the voice, text, mark, speech tokens of the voice

The words are what was said in a recording, or instructions; speech tokens of the recording follow
the mark only where its words are known. Source: CosyVoice, `cli/frontend.py` (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from tokenizers import Tokenizer

from models.audio.reference import REFERENCE_TEXT
from models.base import PromptPlan
from models.cosyvoice2.config import (
    COLUMN,
    INSTRUCTIONS,
    IS_OPEN,
    LEAST_RATIO,
    MOST_RATIO,
    N_LEAST,
    SOUND_TAGS,
    SPEECH,
    STATE_SIZE,
    STREAMED_FRAMES,
    TEMPERATURE,
    TEXT_CAPACITY,
    TOP_K,
    TOP_P,
    WORDS,
    CosyVoiceConfig,
)
from models.cosyvoice2.voice import Voice
from models.errors import PlanError
from models.limits import frame_limit
from models.options import check_language, check_options
from models.sampling import SamplingParams
from models.spec import ModelSpec, OptionValue, PlanRequest

END_OF_PROMPT: Final = "<|endofprompt|>"
_TAG: Final = re.compile(f"<({'|'.join(SOUND_TAGS)})>")
_MARK: Final = re.compile(r"<\|[^<>|]+\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """What stands in the prompt around the text.

    Args:
        words: ids before it.
        codes: behind it.
        option: which the words come from; empty: the voice has them.
    """

    words: Sequence[int]
    codes: Sequence[int]
    option: str = ""


def plan(
    request: PlanRequest,
    spec: ModelSpec,
    config: CosyVoiceConfig,
    tokenizer: Tokenizer,
    voice: Voice,
    words: str | None,
) -> PromptPlan:
    """Make the prompt of a request, which is to be spoken by `voice`.

    Args:
        request: what is asked for.
        spec: of the model.
        config: of the checkpoint.
        tokenizer: of its text.
        voice: that speaks.
        words: said in its recording, where the request has them.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
            `empty_text`, `prompt_too_long`, `text_not_streamed` (there are instructions, or the
            request has the voice's words).
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    text = text_ids(request.text, tokenizer)
    if not text:
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    sampling = {COLUMN: _sampling(options, config)}
    if not request.is_text_final:
        if words is not None or INSTRUCTIONS.name in options:
            message = "with the words of a recording, or instructions, the text is taken whole"
            raise PlanError("text_not_streamed", message, "text")
        return _streamed(request, spec, config, voice, text, sampling)
    lead = _lead(options, voice, words, tokenizer)
    head = [config.start_mark, *lead.words]
    codes = [config.first_code + code for code in lead.codes]
    ids = [*head, *text, config.speech_mark, *codes]
    is_led = bool(lead.option) and len(lead.words) > len(text)
    at_fault = lead.option if is_led else "text"
    n_left = _room(spec, len(ids), LEAST_RATIO * len(text), at_fault)
    n_most = min(n_left, MOST_RATIO * len(text), frame_limit(request, spec, len(text)))
    state = torch.zeros(STATE_SIZE, dtype=torch.int64)
    state[N_LEAST] = LEAST_RATIO * len(text)
    return PromptPlan(
        ids=torch.tensor(ids).unsqueeze(1),
        state=state,
        max_frames=n_most,
        # One row more for the end.
        max_rows=n_most + 1,
        codec_state=voice.codec_state,
        prefix_key=voice.key if lead.words else None,
        prefix_rows=len(head),
        sampling=sampling,
    )


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text; blanks at its ends stay, for they part the words of streamed text."""
    said = _without_marks(text, tokenizer)
    if not said.strip():
        return []
    ids: list[int] = tokenizer.encode(_TAG.sub(r"[\1]", said), add_special_tokens=False).ids
    return ids


def _without_marks(text: str, tokenizer: Tokenizer) -> str:
    """Text that opens and ends nothing: what stands before a mark of instructions is not spoken."""
    return _MARK.sub(lambda mark: mark[0] if tokenizer.token_to_id(mark[0]) is None else " ", text)


def _streamed(
    request: PlanRequest,
    spec: ModelSpec,
    config: CosyVoiceConfig,
    voice: Voice,
    text: list[int],
    sampling: dict[str, SamplingParams],
) -> PromptPlan:
    """A prompt with the first group of text, if it is there; the rest goes into the feed.

    What a voice of the folder is known to say has no place in it.
    """
    if len(text) > TEXT_CAPACITY:
        message = f"the text has {len(text)} tokens, at most {TEXT_CAPACITY} are accepted"
        raise PlanError("prompt_too_long", message, "text")
    n_given = config.interleave.n_words if len(text) >= config.interleave.n_words else 0
    ids = [config.start_mark, *text[:n_given]]
    n_left = _room(spec, len(ids), 0, "text")
    n_most = min(n_left, STREAMED_FRAMES, frame_limit(request, spec, None))
    state = torch.zeros(STATE_SIZE, dtype=torch.int64)
    state[0] = SPEECH if n_given else WORDS
    state[IS_OPEN] = 1
    state[N_LEAST] = LEAST_RATIO * n_given
    return PromptPlan(
        ids=torch.tensor(ids).unsqueeze(1),
        state=state,
        max_frames=n_most,
        # Beside speech there are the words, the mark and the end.
        max_rows=min(n_left, n_most + TEXT_CAPACITY + 2),
        codec_state=voice.codec_state,
        text_ids=torch.tensor(text[n_given:], dtype=torch.int64),
        is_text_final=False,
        sampling=sampling,
    )


def _lead(
    options: dict[str, OptionValue], voice: Voice, words: str | None, tokenizer: Tokenizer
) -> Lead:
    told = _without_marks(str(options.get(INSTRUCTIONS.name) or ""), tokenizer)
    instructions = told.strip()
    if instructions:
        said = tokenizer.encode(f"{instructions}{END_OF_PROMPT}", add_special_tokens=False).ids
        return Lead(words=said, codes=(), option=INSTRUCTIONS.name)
    if words is None:
        return Lead(words=voice.words, codes=voice.codes if voice.words else ())
    known = text_ids(words, tokenizer)
    return Lead(words=known, codes=voice.codes if known else (), option=REFERENCE_TEXT.name)


def _room(spec: ModelSpec, n_rows: int, n_least: int, at_fault: str) -> int:
    """Rows that are left behind a prompt. Raises: `PlanError` `prompt_too_long`."""
    n_left = spec.backbone.max_positions - n_rows - 1
    if n_left < max(n_least, 1):
        n_most = spec.backbone.max_positions
        message = f"the prompt has {n_rows} rows; with its speech at most {n_most} are accepted"
        remedy = "split the text" if at_fault == "text" else f"give shorter {at_fault}"
        raise PlanError("prompt_too_long", f"{message}: {remedy}", at_fault)
    return n_left


def _sampling(options: dict[str, OptionValue], config: CosyVoiceConfig) -> SamplingParams:
    own = config.sampling
    return SamplingParams(
        temperature=float(options[TEMPERATURE.name]),
        top_p=float(options[TOP_P.name]),
        top_k=int(options[TOP_K.name]),
        is_top_p_of_all=own.is_top_p_of_all,
        redraw_window=own.redraw_window,
        redraw_count=own.redraw_count,
    )

"""Requests to prompts: `plan` of `csm`. Worker thread; only reference audio takes weights.

A row holds text or one frame of codes. A turn is its text, and its frames with an all-zero one
behind them; the turn to be spoken has no frames yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.base import PromptPlan
from models.csm.config import (
    REFERENCE_TEXT,
    STATE_SIZE,
    TEMPERATURE,
    TOP_K,
    CsmConfig,
)
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams

MAX_SECONDS: Final = 90.0
MAX_REFERENCE_S: Final = 30.0

Encode = Callable[[Tensor], Tensor]
"""PCM `(n,)` at the codec's rate to codes `(T, Q)`."""


def plan(
    request: PlanRequest,
    spec: ModelSpec,
    config: CsmConfig,
    tokenizer: Tokenizer,
    encode: Encode,
) -> PromptPlan:
    """Make the prompt of a request.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `empty_text`, `invalid_reference` (no words to it, the wrong
            rate, too long), `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    voice = check_voice(spec, request.voice)
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    turns = [_text_rows(f"[{voice}]{request.text}", config, tokenizer)]
    n_text = len(turns[0])
    reference_text = options.get(REFERENCE_TEXT.name)
    if request.audio is not None:
        codes = encode(_reference(request, config, reference_text))
        turns[:0] = [
            _text_rows(f"[{voice}]{reference_text}", config, tokenizer),
            _audio_rows(codes, config),
        ]
    elif reference_text is not None:
        message = f"{REFERENCE_TEXT.name} is given without reference audio"
        raise PlanError("invalid_reference", message, REFERENCE_TEXT.name)
    ids = torch.cat(turns)
    n_most = spec.backbone.max_positions - len(ids)
    if n_most < least_frames(spec):
        most = spec.backbone.max_positions - least_frames(spec)
        message = f"the prompt has {len(ids)} rows, at most {most} are accepted: split the text"
        raise PlanError("prompt_too_long", message, "text")
    return PromptPlan(
        ids=ids,
        state=torch.zeros(STATE_SIZE, dtype=torch.int64),
        max_frames=min(n_most, _frames_wanted(request, spec, n_text)),
        sampling=_sampling(options, spec),
    )


def _text_rows(text: str, config: CsmConfig, tokenizer: Tokenizer) -> Tensor:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    rows = torch.full((len(ids) + 2, 1 + config.n_codebooks), config.no_code)
    rows[:, 0] = torch.tensor([config.bos_id, *ids, config.eos_id])
    return rows


def _audio_rows(codes: Tensor, config: CsmConfig) -> Tensor:
    rows = torch.full((len(codes) + 1, 1 + config.n_codebooks), config.eos_code)
    rows[:-1, 1:] = codes
    rows[:, 0] = config.no_text
    return rows


def _reference(request: PlanRequest, config: CsmConfig, text: OptionValue | None) -> Tensor:
    assert request.audio is not None, "the caller has looked"
    rate_hz = config.mimi.sample_rate_hz
    if not text:
        message = f"reference audio needs its words in the option {REFERENCE_TEXT.name}"
        raise PlanError("invalid_reference", message, REFERENCE_TEXT.name)
    if request.audio_rate_hz != rate_hz:
        message = f"reference audio is at {request.audio_rate_hz} Hz, must be at {rate_hz}"
        raise PlanError("invalid_reference", message, "audio")
    if not 0 < len(request.audio) <= MAX_REFERENCE_S * rate_hz:
        seconds = len(request.audio) / rate_hz
        message = f"reference audio has {seconds:.1f} s, at most {MAX_REFERENCE_S:g} are taken"
        raise PlanError("invalid_reference", message, "audio")
    return torch.from_numpy(request.audio)


def _frames_wanted(request: PlanRequest, spec: ModelSpec, n_text: int) -> int:
    most = math.floor(MAX_SECONDS * spec.frame.frame_rate_hz)
    return min(most, frame_limit(request, spec, n_text))


def _sampling(options: dict[str, OptionValue], spec: ModelSpec) -> dict[str, SamplingParams]:
    drawn = SamplingParams(
        temperature=float(options[TEMPERATURE.name]), top_k=int(options[TOP_K.name])
    )
    return {column.name: drawn for column in spec.columns[1:]}

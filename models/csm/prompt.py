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

from models.audio.reference import (
    REFERENCE_TEXT,
    Reference,
    read_reference,
    reference_words,
)
from models.base import PromptPlan
from models.csm.config import STATE_SIZE, TEMPERATURE, TOP_K, CsmConfig
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams

MAX_SECONDS: Final = 90.0

Encode = Callable[[Reference], Tensor]
"""A recording at the codec's rate to codes `(T, Q)`."""


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
            `unsupported_language`, `empty_text`, `prompt_too_long`, `invalid_reference` (audio or
            words alone), and those of `models.audio.reference.read_reference`.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    voice = check_voice(spec, request.voice)
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    text = _text_rows(f"[{voice}]{request.text}", config, tokenizer)
    reference = read_reference(request, options, config.mimi.sample_rate_hz)
    words = reference_words(options, reference)
    before = []
    if reference is not None:
        if words is None:
            message = f"the model needs the words of the recording: give {REFERENCE_TEXT.name}"
            raise PlanError("invalid_reference", message, REFERENCE_TEXT.name)
        said = _text_rows(f"[{voice}]{words}", config, tokenizer)
        before = [said, _audio_rows(encode(reference), config)]
    ids = torch.cat([*before, text])
    n_most = spec.backbone.max_positions - len(ids)
    if n_most < least_frames(spec):
        most = spec.backbone.max_positions - least_frames(spec)
        message = f"the prompt has {len(ids)} rows, at most {most} are accepted: split the text"
        raise PlanError("prompt_too_long", message, "text")
    return PromptPlan(
        ids=ids,
        state=torch.zeros(STATE_SIZE, dtype=torch.int64),
        max_frames=min(n_most, _frames_wanted(request, spec, len(text))),
        prefix_key=None if reference is None else reference.key,
        prefix_rows=len(ids) - len(text),
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


def _frames_wanted(request: PlanRequest, spec: ModelSpec, n_text: int) -> int:
    most = math.floor(MAX_SECONDS * spec.frame.frame_rate_hz)
    return min(most, frame_limit(request, spec, n_text))


def _sampling(options: dict[str, OptionValue], spec: ModelSpec) -> dict[str, SamplingParams]:
    drawn = SamplingParams(
        temperature=float(options[TEMPERATURE.name]), top_k=int(options[TOP_K.name])
    )
    return {column.name: drawn for column in spec.columns[1:]}

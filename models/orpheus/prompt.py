"""Requests to prompts: `plan` of `orpheus`. Runs in a worker thread, touches no weights."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from models.base import PromptPlan
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.orpheus.config import (
    COLUMN,
    N_SLOTS,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    STATE_SIZE,
    TEMPERATURE,
    TOP_P,
    OrpheusIds,
)
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams


def plan(
    request: PlanRequest, spec: ModelSpec, ids: OrpheusIds, tokenizer: Tokenizer
) -> PromptPlan:
    """The human says the voice's name and the text; the model answers with speech.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `empty_text`, `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    voice = check_voice(spec, request.voice)
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    text = tokenizer.encode(f"{voice}: {request.text}", add_special_tokens=False).ids
    prompt = [
        ids.human_start,
        ids.text_start,
        *text,
        ids.text_end,
        ids.human_end,
        ids.ai_start,
        ids.speech_start,
    ]
    n_most = (spec.backbone.max_positions - len(prompt)) // N_SLOTS
    if n_most < least_frames(spec):
        n_rows = spec.backbone.max_positions - least_frames(spec) * N_SLOTS
        message = f"the text has {len(prompt)} tokens, at most {n_rows} are accepted: split it"
        raise PlanError("prompt_too_long", message, "text")
    return PromptPlan(
        ids=torch.tensor(prompt).unsqueeze(1),
        state=torch.zeros(STATE_SIZE, dtype=torch.int64),
        max_frames=min(n_most, frame_limit(request, spec, len(text))),
        sampling={COLUMN: _sampling(options)},
    )


def _sampling(options: dict[str, OptionValue]) -> SamplingParams:
    return SamplingParams(
        temperature=float(options[TEMPERATURE.name]),
        top_p=float(options[TOP_P.name]),
        repetition_penalty=float(options[REPETITION_PENALTY.name]),
        repetition_window=REPETITION_WINDOW,
    )

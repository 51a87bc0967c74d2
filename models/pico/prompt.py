"""Requests to prompts: `plan` of `pico`. Runs in a worker thread, touches no weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch

from models.base import PromptPlan
from models.errors import PlanError
from models.options import check_language, check_options, check_voice
from models.pico.config import MAX_UNITS, PicoConfig
from models.pico.facts import (
    ADVANCE_COLUMN,
    SPEED,
    TEMPERATURE,
    TIMING_TEMPERATURE,
    code_column,
    max_steps,
)
from models.pico.front import text_to_units
from models.pico.grammar import Grammar
from models.pico.stretch import UNIT_SPEED
from models.pico.units import BOA_ID, BOS_ID
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams
from models.text.errors import TextError
from models.text.scripts import unspeakable_scripts

MAX_CHARACTERS: Final = 20 * MAX_UNITS
"""Longer texts are refused before any work: hardly any text has 20 characters a unit."""


def plan(request: PlanRequest, spec: ModelSpec, config: PicoConfig, grammar: Grammar) -> PromptPlan:
    """Make the prompt of a request.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `invalid_text`, `empty_text` (nothing to say, or nothing that
            can be said), `unsupported_script`, `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    check_voice(spec, request.voice)
    check_language(spec, request.language)
    prompt = torch.tensor([BOS_ID, *_speakable_units(request.text), BOA_ID])
    speed = round(float(options[SPEED.name]) * UNIT_SPEED)
    steps = max_steps(len(prompt) - 2)
    if request.max_seconds is not None:
        step_s = config.step_samples / config.vocoder.sample_rate * UNIT_SPEED / speed
        steps = min(steps, max(1, math.floor(request.max_seconds / step_s)))
    return PromptPlan(
        ids=grammar.prompt_rows(prompt),
        state=grammar.start(prompt),
        max_frames=steps,
        codec_state={"clock": torch.tensor([0, speed])},
        sampling=_sampling(options, config),
    )


def _speakable_units(text: str) -> tuple[int, ...]:
    """Units of the text, at least one and at most `MAX_UNITS`. Raises: `PlanError`."""
    if len(text) > MAX_CHARACTERS:
        raise PlanError(
            "prompt_too_long",
            f"the text has {len(text)} characters; split it into sentences of at most "
            f"{MAX_UNITS} sound units, about {MAX_UNITS} characters each",
            "text",
        )
    try:
        ids = text_to_units(text).ids
    except TextError as error:
        raise PlanError("invalid_text", str(error), "text") from error
    if not ids:
        scripts = unspeakable_scripts(text)
        if scripts:
            raise PlanError(
                "unsupported_script",
                f"the voice speaks English only, the text is in {' and '.join(scripts)}",
                "text",
            )
        raise PlanError("empty_text", "the text holds nothing that can be spoken", "text")
    if len(ids) > MAX_UNITS:
        raise PlanError(
            "prompt_too_long",
            f"the text has {len(ids)} sound units, at most {MAX_UNITS} are accepted; "
            "split it into sentences",
            "text",
        )
    return ids


def _sampling(options: Mapping[str, OptionValue], config: PicoConfig) -> dict[str, SamplingParams]:
    """Overrides of the trained defaults, by column."""
    overrides: dict[str, SamplingParams] = {}
    if TIMING_TEMPERATURE.name in options:
        temperature = float(options[TIMING_TEMPERATURE.name])
        overrides[ADVANCE_COLUMN] = replace(config.advance_sampling, temperature=temperature)
    if TEMPERATURE.name in options:
        temperature = float(options[TEMPERATURE.name])
        for book, sampling in enumerate(config.code_sampling):
            overrides[code_column(book)] = replace(sampling, temperature=temperature)
    return overrides

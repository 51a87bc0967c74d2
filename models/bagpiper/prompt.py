"""Requests to prompts: `plan` of `bagpiper`. Worker thread, no weights.

A message is who speaks, what kind it is, the text, an end; a row holds one id, the other columns
are blank. The last row says that the model speaks.
"""

from __future__ import annotations

from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.bagpiper.config import (
    ASSISTANT,
    BLANK,
    BOS,
    EOS,
    MARKS,
    MOST_SEGMENTS,
    SYSTEM,
    TEXT_MARK,
    USER,
    BagpiperConfig,
)
from models.bagpiper.facts import (
    AUDIO,
    CHOICE,
    END,
    FIRST,
    GUIDANCE,
    IS_SCENE,
    N_MOST,
    N_ORDERED,
    ORDER,
    PHASES,
    SEGMENTS,
    STYLE,
    TEMPERATURE,
    TEXT,
    TEXT_TEMPERATURE,
    sampling,
)
from models.base import PromptPlan
from models.errors import PlanError
from models.layers.delay import NEVER
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams

ANY: Final = "any"
REQUEST: Final = "Say “{text}” {style}."
"""How a text is asked for. Source: the published examples of such requests."""


def plan(
    request: PlanRequest, spec: ModelSpec, config: BagpiperConfig, tokenizer: Tokenizer
) -> PromptPlan:
    """The user asks for the text to be said, or, as a scene, for what it describes.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
            `invalid_reference` (heard audio), `empty_text`, `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    if request.audio is not None:
        message = "bagpiper hears nothing here: the encoder of its checkpoint is not used"
        raise PlanError("invalid_reference", message, "audio")
    if not request.text.strip():
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    before = _message(SYSTEM, config.system, config, tokenizer) if config.system else []
    asked = _message(USER, _asked(request.text, options), config, tokenizer)
    column = [BOS, *before, *asked, ASSISTANT]
    ids = torch.full((len(column), config.n_columns), BLANK)
    ids[:, 0] = torch.tensor(column)
    # A scene may last however short its description is.
    n_words = None if options[IS_SCENE.name] else len(asked)
    order = _order(options, config)
    return PromptPlan(
        ids=ids,
        state=start_state(spec, order, n_most=len(order) or MOST_SEGMENTS),
        max_frames=_max_frames(request, spec, config, len(column), n_words),
        guidance_scale=float(options[GUIDANCE.name]),
        sampling=_sampling(options, spec, config),
        prefix_key="bagpiper" if before else None,
        prefix_rows=1 + len(before),
    )


def start_state(spec: ModelSpec, order: tuple[str, ...], *, n_most: int) -> Tensor:
    """A stream's state before its first row.

    Args:
        spec: of the model.
        order: kinds of the first messages of the answer; the model chooses those after them.
        n_most: messages of the answer at most.
    """
    state = torch.zeros(spec.state_size, dtype=torch.int64)
    state[0] = CHOICE
    state[END] = NEVER
    state[N_ORDERED] = len(order)
    state[N_MOST] = n_most
    for place, kind in enumerate(order):
        state[ORDER + place] = MARKS[kind]
    return state


def _message(role: int, text: str, config: BagpiperConfig, tokenizer: Tokenizer) -> list[int]:
    low = config.text_ids[0]
    # NOTE: the models were trained with text id 0 written as a blank. Source: the reference's
    # preprocessor, which takes any 0 for padding.
    text_ids = [low + idx if idx else BLANK for idx in tokenizer.encode(text).ids]
    return [role, TEXT_MARK, *text_ids, EOS]


def _asked(text: str, options: dict[str, OptionValue]) -> str:
    if options[IS_SCENE.name]:
        return text
    return REQUEST.format(text=text.strip(), style=str(options[STYLE.name]).strip())


def _order(options: dict[str, OptionValue], config: BagpiperConfig) -> tuple[str, ...]:
    wanted = options.get(SEGMENTS.name)
    if wanted is None:
        return config.order
    return () if wanted == ANY else tuple(str(wanted).split(","))


def _sampling(
    options: dict[str, OptionValue], spec: ModelSpec, config: BagpiperConfig
) -> dict[str, SamplingParams]:
    text = sampling(config.text, float(options[TEXT_TEMPERATURE.name]))
    audio = sampling(config.audio, float(options[TEMPERATURE.name]))
    names = [f"{PHASES[AUDIO]}.{column.name}" for column in spec.columns]
    return {f"{PHASES[TEXT]}.{FIRST}": text, **dict.fromkeys(names, audio)}


def _max_frames(
    request: PlanRequest,
    spec: ModelSpec,
    config: BagpiperConfig,
    n_rows: int,
    n_words: int | None,
) -> int:
    """Raises: `PlanError` `prompt_too_long`."""
    # Bridge rows of two messages, and the delay.
    n_beside = config.n_columns + 4
    n_most = spec.backbone.max_positions - n_rows - n_beside
    if n_most < least_frames(spec):
        most = spec.backbone.max_positions - least_frames(spec) - n_beside
        message = f"the prompt has {n_rows} rows, at most {most} are accepted: split the text"
        raise PlanError("prompt_too_long", message, "text")
    limit = frame_limit(request, spec, n_words)
    return max(1, min(n_most, limit, config.audio.most_rows - config.n_columns + 1))

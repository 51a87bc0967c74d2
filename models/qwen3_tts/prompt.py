"""Requests to prompts: `plan` and `extend` of `qwen3_tts`. Worker thread, touches no weights.

A row holds a text id, codes, or both. The speaker and the language stand in the first codebook's
column; the text follows, one id a row, and each generated frame takes the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.base import PromptPlan
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.qwen3_tts.config import (
    AUTO,
    INSTRUCTIONS,
    MAX_FRAMES,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    STATE_SIZE,
    TEMPERATURE,
    TEXT_CAPACITY,
    TOP_K,
    QwenTtsConfig,
)
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams

OPENING: Final = "<|im_start|>assistant\n"
INSTRUCTED: Final = "<|im_start|>user\n{}<|im_end|>\n"
CHINESE: Final = "chinese"


def plan(
    request: PlanRequest, spec: ModelSpec, config: QwenTtsConfig, tokenizer: Tokenizer
) -> PromptPlan:
    """Make the prompt of a request; its text but for the first id goes into the text feed.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `empty_text`, `prompt_too_long`.
    """
    options = check_options(spec, request.options)
    voice = check_voice(spec, request.voice)
    language = check_language(spec, request.language)
    text = text_ids(request.text, tokenizer)
    if not text:
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    if len(text) > TEXT_CAPACITY:
        message = f"the text has {len(text)} tokens, at most {TEXT_CAPACITY} are accepted"
        raise PlanError("prompt_too_long", message, "text")
    instructions = options.get(INSTRUCTIONS.name)
    opening = INSTRUCTED.format(instructions) + OPENING if instructions else OPENING
    rows: list[tuple[int, int | None]] = [
        (idx, None) for idx in tokenizer.encode(opening, add_special_tokens=False).ids
    ]
    rows += _voiced(_introduction(voice, language, config), text[0], config)
    ids = _as_rows(rows, config)
    n_known = len(text) if request.is_text_final else None
    n_most = min(MAX_FRAMES, spec.backbone.max_positions - len(ids))
    if n_most < least_frames(spec):
        message = f"the prompt has {len(ids)} rows: shorten the instructions"
        raise PlanError("prompt_too_long", message, INSTRUCTIONS.name)
    return PromptPlan(
        ids=ids,
        state=torch.zeros(STATE_SIZE, dtype=torch.int64),
        max_frames=min(n_most, frame_limit(request, spec, n_known)),
        text_ids=torch.tensor(text[1:], dtype=torch.int64),
        is_text_final=request.is_text_final,
        sampling=_sampling(options, spec),
    )


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text; blanks at its ends stay, for they part the words of streamed text."""
    if not text.strip():
        return []
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _introduction(voice: str | None, language: str | None, config: QwenTtsConfig) -> list[int]:
    """Ids of the first codebook's column before the text: language, speaker, padding."""
    marks = config.marks
    if voice is not None and language in (CHINESE, AUTO) and voice in config.dialects:
        language = config.dialects[voice]
    if language in (None, AUTO):
        said = [marks.no_think, marks.think_bos, marks.think_eos]
    else:
        assert language is not None, "None was just handled"
        said = [marks.think, marks.think_bos, config.languages[language], marks.think_eos]
    speaker = [] if voice is None else [config.speakers[voice]]
    return [*said, *speaker, marks.pad]


def _voiced(
    introduction: Sequence[int], first_text: int, config: QwenTtsConfig
) -> list[tuple[int, int | None]]:
    """Rows with text and a code: the introduction beside padding, then the first id of text."""
    padding = [config.tts_pad] * (len(introduction) - 1)
    texts = [*padding, config.tts_bos, first_text]
    return list(zip(texts, [*introduction, config.marks.bos], strict=True))


def _as_rows(rows: Sequence[tuple[int, int | None]], config: QwenTtsConfig) -> Tensor:
    nothing = [config.no_code(codebook) for codebook in range(config.n_codebooks)]
    ids = torch.tensor([0, *nothing]).repeat(len(rows), 1)
    ids[:, 0] = torch.tensor([text for text, _ in rows])
    ids[:, 1] = torch.tensor([nothing[0] if code is None else code for _, code in rows])
    return ids


def _sampling(options: dict[str, OptionValue], spec: ModelSpec) -> dict[str, SamplingParams]:
    temperature, top_k = float(options[TEMPERATURE.name]), int(options[TOP_K.name])
    first = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        repetition_penalty=float(options[REPETITION_PENALTY.name]),
        repetition_window=REPETITION_WINDOW,
    )
    others = SamplingParams(temperature=temperature, top_k=top_k)
    names = [column.name for column in spec.columns[1:]]
    return {name: others if idx else first for idx, name in enumerate(names)}

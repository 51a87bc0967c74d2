"""Requests to prompts: `plan` and `extend` of `qwen3_tts`. Worker thread, touches no weights.

A row holds a text id, codes, or both. The speaker and the language stand in the first codebook's
column; the text follows, one id a row, and each generated frame takes the next. Where a recording
and its words are given, the recording's codes stand before the generated ones, and its words before
the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.audio.reference import REFERENCE_TEXT
from models.base import PromptPlan
from models.errors import PlanError
from models.limits import frame_limit, least_frames
from models.options import check_language, check_options, check_voice
from models.qwen3_tts.config import (
    AUTO,
    INSTRUCTIONS,
    IS_TOLD,
    MAX_FRAMES,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    STATE_SIZE,
    TEMPERATURE,
    TEXT_CAPACITY,
    TOP_K,
    WHOLE_TEXT,
    QwenTtsConfig,
)
from models.qwen3_tts.voice import Voice
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams

OPENING: Final = "<|im_start|>assistant\n"
INSTRUCTED: Final = "<|im_start|>user\n{}<|im_end|>\n"
CHINESE: Final = "chinese"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A recording to speak like.

    Args:
        voice: what was heard.
        row: `(H,)`, the speaker's row.
        words: said in it; None: only its sound counts.
    """

    voice: Voice
    row: Tensor
    words: str | None


def plan(
    request: PlanRequest,
    spec: ModelSpec,
    config: QwenTtsConfig,
    tokenizer: Tokenizer,
    heard: Heard | None,
) -> PromptPlan:
    """Make the prompt of a request; text that has no place in it goes into the text feed.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unknown_voice`,
            `unsupported_language`, `empty_text`, `prompt_too_long`, `text_not_streamed` (the words
            of a recording are given, or the text is to stand before the speech).
    """
    options = check_options(spec, request.options)
    voice = check_voice(spec, request.voice)
    language = check_language(spec, request.language)
    text = _given_text(request, tokenizer)
    said = _introduction(voice, language, config, has_row=heard is not None)
    head = _head(options.get(INSTRUCTIONS.name), said, tokenizer, config)
    words: list[int] = []
    if heard is not None and heard.words is not None:
        words = _given_words(heard.words, request, tokenizer, n_most=TEXT_CAPACITY - len(text))
        assert heard.voice.frames is not None, "encoded together with its words"
        rows, left = _recording(words, text, heard.voice.frames, config)
    elif options.get(WHOLE_TEXT.name):
        rows, left = _whole(text, request, config), []
    else:
        rows, left = _as_rows([(text[0], config.marks.bos)], config), [*text[1:], config.tts_eos]
    ids = torch.cat([head, rows])
    n_most = min(MAX_FRAMES, spec.backbone.max_positions - len(ids))
    if n_most < least_frames(spec):
        message = f"the prompt has {len(ids)} rows: shorten the instructions"
        raise PlanError("prompt_too_long", message, INSTRUCTIONS.name)
    state = torch.zeros(STATE_SIZE, dtype=torch.int64)
    state[IS_TOLD] = not left
    n_known = len(text) if request.is_text_final else None
    plan = PromptPlan(
        ids=ids,
        state=state,
        max_frames=min(n_most, frame_limit(request, spec, n_known)),
        text_ids=torch.tensor(left[:-1], dtype=torch.int64),
        is_text_final=request.is_text_final,
        sampling=_sampling(options, spec),
    )
    return plan if heard is None else _with_voice(plan, heard, len(head), len(words))


def _given_text(request: PlanRequest, tokenizer: Tokenizer) -> list[int]:
    text = text_ids(request.text, tokenizer)
    if not text:
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    if len(text) > TEXT_CAPACITY:
        message = f"the text has {len(text)} tokens, at most {TEXT_CAPACITY} are accepted"
        raise PlanError("prompt_too_long", message, "text")
    return text


def _given_words(
    words: str, request: PlanRequest, tokenizer: Tokenizer, *, n_most: int
) -> list[int]:
    if not request.is_text_final:
        message = "with the words of a recording the text is taken whole"
        raise PlanError("text_not_streamed", message, "text")
    ids = text_ids(words, tokenizer)
    if len(ids) > n_most:
        message = f"{REFERENCE_TEXT.name} has {len(ids)} tokens, at most {n_most} are accepted"
        raise PlanError("prompt_too_long", message, REFERENCE_TEXT.name)
    return ids


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text; blanks at its ends stay, for they part the words of streamed text."""
    if not text.strip():
        return []
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _introduction(
    voice: str | None, language: str | None, config: QwenTtsConfig, *, has_row: bool
) -> list[int]:
    """Ids of the first codebook's column before the text: language, speaker, padding.

    `has_row`: the speaker's row is made of a recording; padding holds its place.
    """
    marks = config.marks
    if voice is not None and language in (CHINESE, AUTO) and voice in config.dialects:
        language = config.dialects[voice]
    if language in (None, AUTO):
        said = [marks.no_think, marks.think_bos, marks.think_eos]
    else:
        assert language is not None, "None was just handled"
        said = [marks.think, marks.think_bos, config.languages[language], marks.think_eos]
    speaker = [] if voice is None else [config.speakers[voice]]
    return [*said, *(speaker or [marks.pad] * has_row), marks.pad]


def _head(
    instructions: OptionValue | None,
    introduction: Sequence[int],
    tokenizer: Tokenizer,
    config: QwenTtsConfig,
) -> Tensor:
    """Rows before the text: instructions and role, then the introduction beside padding.

    The mark that opens the text stands beside the last of them.
    """
    opening = INSTRUCTED.format(instructions) + OPENING if instructions else OPENING
    role = tokenizer.encode(opening, add_special_tokens=False).ids
    padding = [config.tts_pad] * (len(introduction) - 1)
    beside = zip([*padding, config.tts_bos], introduction, strict=True)
    return _as_rows([*((idx, None) for idx in role), *beside], config)


def _whole(text: Sequence[int], request: PlanRequest, config: QwenTtsConfig) -> Tensor:
    """Rows of all of the text and its end, and the one that opens the speech."""
    if not request.is_text_final:
        message = f"with {WHOLE_TEXT.name} the text is taken whole"
        raise PlanError("text_not_streamed", message, WHOLE_TEXT.name)
    said = [(idx, config.marks.pad) for idx in (*text, config.tts_eos)]
    return _as_rows([*said, (config.tts_pad, config.marks.bos)], config)


def _recording(
    words: Sequence[int], text: Sequence[int], frames: Tensor, config: QwenTtsConfig
) -> tuple[Tensor, list[int]]:
    """Rows of a recording's codes with words, text and its end beside them; and what is left."""
    said = [*words, *text, config.tts_eos]
    n_rows = len(frames) + 1
    beside = said[:n_rows] + [config.tts_pad] * (n_rows - len(said))
    rows = _as_rows([(idx, config.marks.bos) for idx in beside], config)
    rows[1:, 1:] = frames
    return rows, said[n_rows:]


def _with_voice(plan: PromptPlan, heard: Heard, n_head: int, n_words: int) -> PromptPlan:
    """`plan` with the speaker's row, which is the last but one of its `n_head` first rows.

    Up to the words' end all prompts of one voice are the same.
    """
    at = n_head - 2
    embeds = heard.row.new_zeros(len(plan.ids), len(heard.row))
    embeds[at] = heard.row
    mask = torch.zeros(len(plan.ids), dtype=torch.bool)
    mask[at] = True
    return replace(
        plan,
        embeds=embeds,
        embed_mask=mask,
        codec_state=heard.voice.codec_state,
        prefix_key=heard.voice.key,
        prefix_rows=min(n_head + n_words, len(plan.ids)),
    )


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

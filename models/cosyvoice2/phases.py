"""Rows of `cosyvoice2`: speech tokens, and streamed text between them. Pure, on the device.

    start, 5 of text, 15 of speech, 5 of text, 15 of speech, ..., rest of text, mark, speech, end

A text that is whole stands in the prompt, and the mark behind it: then every row is a speech token.
A text that streams in comes in groups, and speech follows each. A group is begun when all of it is
there; what is left when the text is over is less than a group, and the mark follows it. An end is
never drawn before the mark, nor before there is speech for the text.

Source: CosyVoice, `llm/llm.py`, `Qwen2LM.inference` and `inference_bistream` (Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import Advance, TextFeed
from models.cosyvoice2.config import (
    IN_GROUP,
    IS_OPEN,
    LEAST_RATIO,
    N_CODES,
    N_LEAST,
    N_WORDS,
    SPEECH,
    WORDS,
    CosyVoiceConfig,
)


@dataclass(frozen=True, slots=True)
class Line:
    """The functions `advance` and `constrain` of the model."""

    config: CosyVoiceConfig

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `models.base.SpeechModel.advance`."""
        config, group = self.config, self.config.interleave
        is_speech, n_words = state[:, 0] == SPEECH, state[:, N_WORDS]
        is_open = state[:, IS_OPEN]
        code = ids[:, 0] - config.first_code
        is_code = is_speech & (code < config.n_codes)
        in_group = state[:, IN_GROUP] + is_code
        is_full = (is_open == 1) & (in_group == group.n_codes)

        # Where nothing was drawn the next row is a word, or the mark if there is none left.
        n_left = feed.n_ids - n_words
        is_word = ~is_speech & (n_left > 0)
        is_over = ~is_speech & (n_left <= 0)
        at = n_words.clamp(max=feed.ids.shape[1] - 1).unsqueeze(1)
        word = torch.where(is_word, feed.ids.gather(1, at)[:, 0], config.speech_mark)
        is_begun = n_words % group.n_words != 0
        n_words = n_words + is_word
        is_last = is_over | (n_words % group.n_words == 0)
        speaks = torch.where(is_speech, ~is_full, is_last)
        new_state = torch.stack(
            [
                torch.where(speaks, SPEECH, WORDS),
                state[:, N_CODES] + is_code,
                torch.where(is_speech, in_group, 0),
                n_words,
                is_open * ~is_over,
                state[:, N_LEAST],
            ],
            dim=1,
        )
        return Advance(
            rows=torch.where(is_speech, ids[:, 0], word).unsqueeze(1),
            state=new_state,
            frames=code.clamp(0, config.n_codes - 1).unsqueeze(1),
            emits=is_code,
            text_ids=torch.full_like(code, -1),
            is_finished=is_speech & ~is_code,
            is_starved=~is_speech & ~feed.is_final & ~is_begun & (n_left < group.n_words),
        )

    def constrain(self, state: Tensor, logits: Tensor) -> Tensor:
        """Logits `(B, n_drawn)` without the ends where none may be yet."""
        n_least = state[:, N_LEAST] + LEAST_RATIO * state[:, N_WORDS]
        is_early = (state[:, IS_OPEN] == 1) | (state[:, N_CODES] < n_least)
        is_end = torch.arange(logits.shape[1], device=logits.device) >= self.config.n_codes
        return logits.masked_fill(is_early.unsqueeze(1) & is_end, -torch.inf)

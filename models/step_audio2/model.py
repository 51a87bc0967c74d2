"""`step-audio2`, put together to the contract of `models.base`: text and speech in one line of ids.

What differs from the reference on purpose: the repetition penalty looks back 256 rows of the
answer, and not at the prompt; ids that stand for nothing are never drawn; earlier answers are told
in words; what comes of codes is `models.step_audio2.vocoder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import Taker, read_safetensors
from models.hugging_face import load_decoder, make_decoder, read_tokenizer
from models.layers.linear import linear_of
from models.module import ModelModule
from models.spec import PHASE_COLUMN, ModelSpec, OptionValue, PlanRequest
from models.step_audio2 import prompt
from models.step_audio2.config import StepConfig, is_step_audio2, read_step_config
from models.step_audio2.facts import CLOSING, FACTS, SPEECH, model_spec
from models.step_audio2.hearing import Hearing
from models.step_audio2.voices import Voices, voice_names

__all__ = ["FACTS", "StepModel", "is_in", "load", "read_spec"]

SOURCE = "the checkpoint"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What the tokenizer shows for the bytes of a character that is not whole yet."""


class StepModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM, the encoder and the adapter, by the checkpoint's keys.
        voices: what makes sound of codes, and whose voice it may be.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    is_text: Tensor

    def __init__(
        self, config: StepConfig, tokenizer: Tokenizer, weights: dict[str, Tensor], voices: Voices
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config, voices.codec, voices.names)
        self.tokenizer = tokenizer
        self.voices = voices
        left = dict(weights)
        self.hearing = Hearing(config.encoder, config.adapter, left, SOURCE)
        self.writer = prompt.Writer(config.ids, tokenizer, self.hearing.pieces)
        take = Taker(left, SOURCE)
        n_ids, hidden = config.decoder.n_ids, config.decoder.backbone.hidden
        self.table = nn.Embedding(n_ids, hidden, device="meta")
        self.table.weight = take("model.embed_tokens.weight", n_ids, hidden)
        head = take("lm_head.weight", n_ids, hidden)
        self.head = linear_of(head[: config.n_used_ids].detach())
        self.decoder = make_decoder(config.decoder)
        load_decoder(self.decoder, left, "model.", source=SOURCE)
        is_text = torch.arange(config.n_used_ids) < config.ids.first_code
        is_text[[idx for idx in config.ids.marks if idx < config.n_used_ids]] = False
        self.register_buffer("is_text", is_text, persistent=False)
        self.requires_grad_(False)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread.

        Raises:
            PlanError: see `models.step_audio2.prompt.plan` and `Voices.state`.
        """
        return prompt.plan(request, self.spec, self.writer, self._voiced)

    def _voiced(
        self, request: PlanRequest, options: Mapping[str, OptionValue]
    ) -> Mapping[str, Tensor]:
        return self.voices.state(request, options, self.spec)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Text of output ids; an incomplete last character is held back."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.rstrip(UNFINISHED)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        x: Tensor = self.table(ids[:, 0])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of text, marks and codes; what the vocabulary has behind them is left out."""
        return [self.head(hidden)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """A code, a word, or a mark; speech ends with its mark, the answer with another."""
        marks, idx = self.config.ids, ids[:, 0]
        phase = state[:, PHASE_COLUMN]
        is_speech, is_end = phase == SPEECH, idx == marks.end
        code = idx - marks.first_code
        next_phase = torch.where(idx == marks.spoken, CLOSING, phase)
        return Advance(
            rows=ids,
            state=next_phase.unsqueeze(1),
            frames=code.clamp(0, self.config.n_codes - 1).unsqueeze(1),
            emits=is_speech & (code >= 0) & (code < self.config.n_codes),
            text_ids=torch.where(is_speech & self.is_text[idx], idx, -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.token2wav.Token2Wav.decode`."""
        return self.voices.token2wav.decode(frames, n_valid, state, is_first, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_step_audio2(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    config = read_step_config(folder)
    return model_spec(config, config.vocoder.codec_spec(), voice_names(folder))


def load(folder: Path) -> StepModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_step_config(folder)
    weights = read_safetensors(folder)
    voices = Voices(config.vocoder, folder)
    return StepModel(config, read_tokenizer(folder), weights, voices)

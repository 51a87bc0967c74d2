"""`cosyvoice2`, put together to the contract of `models.base`: text in, a speech token a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.audio.reference import REFERENCE_AUDIO, read_reference, reference_words
from models.audio.speaker_embedding import OnnxCamPlus
from models.audio.speech_tokenizer import read_speech_tokenizer
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import REMEDY, Taker, read_torch_file, take
from models.codecs.token2wav import Token2Wav
from models.cosyvoice2 import prompt
from models.cosyvoice2.config import (
    FACTS,
    LM_FILE,
    SPEAKER_FILE,
    TEXT_FOLDER,
    TOKENIZER_FILE,
    VOICES_FILE,
    CosyVoiceConfig,
    is_cosyvoice2,
    model_spec,
    read_cosyvoice2_config,
)
from models.cosyvoice2.phases import Line
from models.cosyvoice2.vocoder import FLOW_FILE, HIFT_FILE
from models.cosyvoice2.voice import Listener, Prompt, Voices, read_voices
from models.errors import PlanError, WeightError
from models.hugging_face import load_decoder, make_decoder, read_tokenizer
from models.mapped import fill
from models.module import ModelModule
from models.options import check_options, check_voice
from models.spec import ModelSpec, PlanRequest

__all__ = ["FACTS", "CosyVoiceModel", "is_in", "load", "read_spec"]

MARKS: Final = (
    "<|endofprompt|>",
    "[breath]",
    "<strong>",
    "</strong>",
    "[noise]",
    "[laughter]",
    "[cough]",
    "[clucking]",
    "[accent]",
    "[quick_breath]",
    "<laughter>",
    "</laughter>",
    "[hissing]",
    "[sigh]",
    "[vocalized-noise]",
    "[lipsmack]",
    "[mn]",
)
"""Tokens that follow those of the tokenizer's files, in this order.

Source: CosyVoice, `tokenizer/tokenizer.py`, `QwenTokenizer`.
"""
BACKBONE: Final = "llm.model.model."
UNUSED_HEAD: Final = "llm.model.lm_head.weight"
"""Of the Qwen2 that the LM was made of: nothing is drawn from it."""


class CosyVoiceModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        spec: that follows from it.
        tokenizer: of its text.
        weights: of `llm.pt`.
        codec: the detokenizer.
        voices: to speak with.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: CosyVoiceConfig,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        weights: Mapping[str, Tensor],
        codec: Token2Wav,
        voices: Voices,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        self.tokenizer = tokenizer
        self.codec = codec
        self.voices = voices
        self.line = Line(config)
        left = dict(weights)
        left.pop(UNUSED_HEAD, None)
        self.table = _table(left, config)
        hidden = config.llama.backbone.hidden
        self.head = Taker(left, LM_FILE).linear("llm_decoder", hidden, config.n_drawn)
        self.decoder = make_decoder(config.llama)
        load_decoder(self.decoder, left, BACKBONE, source=LM_FILE)
        self.requires_grad_(False)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread.

        Raises:
            PlanError: see `models.cosyvoice2.prompt.plan`,
                `models.audio.reference.read_reference`; `missing_audio` (no voice is named, and the
                folder has none), `unknown_voice`, `invalid_reference` (words without a recording).
        """
        options = check_options(self.spec, request.options)
        reference = read_reference(request, options, self.config.vocoder.mel.rate_hz)
        words = reference_words(options, reference)
        name = check_voice(self.spec, request.voice)
        if reference is not None:
            voice = self.voices.of_recording(reference)
        elif name is not None:
            voice = self.voices.called(name)
        else:
            message = f"this checkpoint speaks with your voices only: give {REFERENCE_AUDIO.name}"
            raise PlanError("missing_audio", message, REFERENCE_AUDIO.name)
        return prompt.plan(request, self.spec, self.config, self.tokenizer, voice, words)

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """Ids of more text."""
        return torch.tensor(prompt.text_ids(text, self.tokenizer), dtype=torch.int64)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        x: Tensor = self.table(ids[:, 0])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the speech tokens and the ends."""
        return [self.head(hidden)]

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """No end before there is speech for the text."""
        return [self.line.constrain(state, logits[0])]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `models.cosyvoice2.phases.Line.advance`."""
        return self.line.advance(state, ids, feed)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.token2wav.Token2Wav.decode`."""
        return self.codec.decode(frames, n_valid, state, is_first, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_cosyvoice2(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    config = read_cosyvoice2_config(folder)
    return model_spec(config, config.vocoder.codec_spec(), tuple(_named(folder, config)))


def load(folder: Path) -> CosyVoiceModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_cosyvoice2_config(folder)
    flow, hift = (read_torch_file(folder / name) for name in (FLOW_FILE, HIFT_FILE))
    codec = config.vocoder.make(flow, hift)
    listener = Listener(
        read_speech_tokenizer(folder / TOKENIZER_FILE),
        OnnxCamPlus(folder / SPEAKER_FILE),
        config.vocoder.mel,
    )
    named = _named(folder, config)
    return CosyVoiceModel(
        config,
        model_spec(config, codec.spec, tuple(named)),
        _tokenizer(folder, config.llama.n_ids),
        read_torch_file(folder / LM_FILE),
        codec,
        Voices(listener, named, codec.seed),
    )


def _named(folder: Path, config: CosyVoiceConfig) -> Mapping[str, tuple[Prompt, Sequence[int]]]:
    return read_voices(folder / VOICES_FILE, config.vocoder, config.llama.n_ids)


def _tokenizer(folder: Path, n_ids: int) -> Tokenizer:
    """Raises: `WeightError`: the table of the text has fewer rows than there are tokens."""
    tokenizer = read_tokenizer(folder / TEXT_FOLDER)
    tokenizer.add_special_tokens(list(MARKS))
    n_tokens = tokenizer.get_vocab_size()
    if n_tokens > n_ids:
        message = f"{TEXT_FOLDER}: vocab_size is {n_ids}, and there are {n_tokens} tokens"
        raise WeightError(f"{message}; {REMEDY}")
    return tokenizer


def _table(weights: dict[str, Tensor], config: CosyVoiceConfig) -> nn.Embedding:
    """Rows of text, marks and speech, one behind the other, out of `weights`.

    Raises:
        WeightError: one is missing, misshapen or none of floats.
    """
    hidden = config.llama.backbone.hidden
    parts = []
    for key, n_ids in (
        (f"{BACKBONE}embed_tokens.weight", config.llama.n_ids),
        ("llm_embedding.weight", config.first_code - config.llama.n_ids),
        ("speech_embedding.weight", config.n_drawn),
    ):
        parts.append(take(weights, key, (n_ids, hidden), source=LM_FILE))
    table = torch.empty(config.first_code + config.n_drawn, hidden)
    fill(table, parts)
    return nn.Embedding(len(table), hidden, _weight=table)

"""`glm4-voice`, put together to the contract of `models.base`: hears, and answers in both.

Text and speech tokens come in turn in one column: 13 rows of text, then 26 of speech. The reference
asks the model for that and hopes; here a run is kept. A run of text may end early in speech: then
the text is over, and speech follows to the end. An answer ends only where nothing that was written
is unsaid: at the border of runs, or within speech. A mark is never drawn within text. Both are
delivered; the reference's server throws the text away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.sound import Sound
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import read_safetensors
from models.codecs.block_flow import BlockCodec
from models.errors import WeightError
from models.glm4_voice import prompt
from models.glm4_voice.config import (
    DECODER_FOLDER,
    FACTS,
    HEARING_FOLDER,
    N_FRAMES,
    REST,
    RUN,
    SPEECH,
    SPEECH_RUN,
    TEXT,
    TEXT_RUN,
    GlmConfig,
    is_glm4_voice,
    model_spec,
    read_glm_config,
)
from models.glm4_voice.decoder import load_decoder as load_codec
from models.glm4_voice.hearing import Hearing, load_hearing
from models.glm4_voice.tokenizer import RANKS_FILE, GlmTokenizer, read_tokenizer
from models.glm4_voice.weights import fill_decoder, split
from models.hugging_face import make_decoder
from models.layers.linear import linear_of
from models.layers.rotary import Rotary
from models.mapped import own
from models.module import ModelModule
from models.spec import PHASE_COLUMN, ModelSpec, PlanRequest

__all__ = ["FACTS", "GlmVoiceModel", "is_in", "load", "read_spec"]

N_HEARD: Final = 64
"""Recordings of which the speech tokens are kept: a conversation asks for its own again."""


class GlmVoiceModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM, by the checkpoint's keys.
        hearing: what hears.
        codec: what speaks.
        forces_runs: text and speech in runs, as stated above; False: as the reference, where every
            id may follow every other.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    ends: Tensor

    def __init__(
        self,
        config: GlmConfig,
        tokenizer: GlmTokenizer,
        weights: Mapping[str, Tensor],
        hearing: Hearing,
        codec: BlockCodec,
        *,
        forces_runs: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config, forces_runs=forces_runs)
        self.forces_runs = forces_runs
        self.tokenizer = tokenizer
        self.hearing = hearing
        self.codec = codec
        self.decoder = make_decoder(config.llama)
        backbone = config.llama.backbone
        self.decoder.rotary = Rotary(
            backbone.head_dim,
            backbone.max_positions,
            config.llama.theta,
            is_interleaved=True,
            inv_freq=config.inv_freq(),
        )
        table, head, layers = split(weights, config)
        fill_decoder(self.decoder, layers)
        n_ids, hidden = table.shape
        self.table = nn.Embedding(n_ids, hidden, _weight=own(table, torch.float32))
        self.head = linear_of(own(head[: config.n_ids], torch.float32))
        self.register_buffer("ends", torch.tensor(config.ids.ends), persistent=False)
        self._heard: ContentCache[list[int]] = ContentCache(N_HEARD)
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Raises: `PlanError`, see `models.glm4_voice.prompt.plan`."""
        writer = prompt.Writer(ids=self.config.ids, tokenizer=self.tokenizer, hear=self.hear)
        return prompt.plan(request, self.spec, writer)

    def hear(self, sound: Sound) -> list[int]:
        """Speech tokens of what the user said; kept by content. Worker thread."""
        pcm = torch.from_numpy(sound.pcm)
        return self._heard.get(sound.key, lambda: self.hearing.tokens(pcm).tolist())

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Text of text ids; an incomplete last character is held back."""
        return self.tokenizer.decode(ids)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        x: Tensor = self.table(ids[:, 0])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of all ids up to the last speech token."""
        return [self.head(hidden)]

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """No end where words are unsaid; an answer begins with a word."""
        if not self.forces_runs:
            return logits
        phase, is_start = state[:, PHASE_COLUMN], state[:, RUN] == 0
        is_silent = state[:, N_FRAMES] == 0
        # A run of text that has begun, and one of speech that has not.
        is_unsaid = torch.where(phase == TEXT, ~is_start | is_silent, (phase == SPEECH) & is_start)
        is_first = (phase == TEXT) & is_start & is_silent
        ids = torch.arange(logits[0].shape[1], device=state.device)
        is_end = torch.isin(ids, self.ends)
        is_code = ids >= self.config.ids.first_code
        barred = (is_unsaid.unsqueeze(1) & is_end) | (is_first.unsqueeze(1) & is_code)
        return [logits[0].masked_fill(barred, -torch.inf)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Count the run; change over when it is full, or when text ends in speech."""
        drawn, phase, run = ids[:, 0], state[:, PHASE_COLUMN], state[:, RUN]
        is_end = torch.isin(drawn, self.ends)
        is_code = drawn >= self.config.ids.first_code
        is_text = ~is_code & ~is_end
        if self.forces_runs:
            is_text_over = (phase == TEXT) & is_code
            is_text_full = (phase == TEXT) & (run + 1 == TEXT_RUN) & ~is_code
            is_speech_full = (phase == SPEECH) & (run + 1 == SPEECH_RUN)
            new = torch.where(is_text_over, REST, phase)
            new = torch.where(is_text_full, SPEECH, new)
            new = torch.where(is_speech_full, TEXT, new)
            run = torch.where(new == phase, run + 1, 0)
            phase = new
        # The free form may draw marks and padding; they are no text.
        is_word = is_text & (drawn < self.config.n_text)
        return Advance(
            rows=ids,
            state=torch.stack([phase, run, state[:, N_FRAMES] + is_code], dim=1),
            frames=(ids - self.config.ids.first_code).clamp(0, self.config.n_codes - 1),
            emits=is_code,
            text_ids=torch.where(is_word, drawn, -1),
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
        """See `models.codecs.block_flow`."""
        return self.codec.decode(frames, n_valid, state, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_glm4_voice(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return model_spec(read_glm_config(folder))


def load(folder: Path, *, forces_runs: bool = True) -> GlmVoiceModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config, tokenizer = read_glm_config(folder), read_tokenizer(folder)
    if tokenizer.n_ids != config.n_text:
        raise WeightError(
            f"{folder / RANKS_FILE} has {tokenizer.n_ids} tokens, and the first mark stands at "
            f"{config.n_text}: they do not belong together"
        )
    return GlmVoiceModel(
        config,
        tokenizer,
        read_safetensors(folder),
        load_hearing(folder / HEARING_FOLDER),
        load_codec(folder / DECODER_FOLDER),
        forces_runs=forces_runs,
    )

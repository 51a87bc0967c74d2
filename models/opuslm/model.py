"""`opuslm` and `opuslm-dialogue`, put together to the contract of `models.base`.

All columns of a row are drawn from one hidden state; column n belongs to the frame n rows back. The
end stands in the first column; then the frames under way are completed, and in the k-th row after
it the columns up to k are blank (the reference leaves the first column of the first such row to
chance). A blank is never drawn within a frame, nor the mark that opens frames (the reference allows
both, and takes a blank as code 0).

The dialogue model writes its answer before it speaks it. It is told what to answer in words: the
units of audio need a network that no checkpoint brings along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import read_yaml
from models.codecs.espnet_dac import EspnetDac, load_espnet_dac
from models.errors import WeightError
from models.hugging_face import load_decoder, make_decoder, read_tokenizer
from models.layers.columns import ColumnHead, ColumnTable
from models.layers.delay import blank_outside, completed_frame, join_history
from models.module import ModelModule
from models.opuslm import prompt
from models.opuslm.config import (
    CONFIG,
    TOKENIZER_FOLDER,
    OpusLmConfig,
    dac_folder,
    is_opuslm,
    read_opuslm_config,
    tokenizer_source,
)
from models.opuslm.facts import (
    AUDIO,
    BRIDGE,
    DRAIN,
    END,
    FACTS,
    LEAST_FRAMES,
    LEAST_TEXT,
    MOST,
    MOST_TEXT,
    PAST,
    ROW,
    TEXT,
    model_spec,
)
from models.opuslm.voices import PLAIN, read_voices, voice_names
from models.opuslm.weights import DECODER, LmWeights, read_lm
from models.spec import PHASE_COLUMN, ModelSpec, PlanRequest

__all__ = ["FACTS", "OpusLmModel", "is_in", "load", "read_spec"]

UNFINISHED = "\ufffd"
"""What the tokenizer shows for the bytes of a character that is not whole yet."""


class OpusLmModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM.
        dac: the detokenizer.
        voices: prompt rows by name.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    delays: Tensor
    code_lows: Tensor
    bridge: Tensor

    def __init__(
        self,
        config: OpusLmConfig,
        tokenizer: Tokenizer,
        weights: LmWeights,
        dac: EspnetDac,
        voices: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.config = config
        self.voices = voices
        self.spec = model_spec(config, (PLAIN, *voices) if voices else ())
        self.tokenizer = tokenizer
        self.dac = dac
        self.decoder = make_decoder(config.decoder)
        load_decoder(self.decoder, weights.decoder, DECODER, source=weights.source)
        self.table = ColumnTable(weights.table.float(), is_zero_blank=False)
        ranges = [column.ids for column in self.spec.columns]
        n_used = max(high for _, high in ranges)
        self.head = ColumnHead(
            weights.head[:n_used].float(), weights.shifts.float(), [(one,) for one in ranges]
        )
        code_lows = torch.tensor([low for low, _ in config.code_ranges])
        between = torch.tensor(prompt.bridge(config.ids, config.n_columns - 1))
        self.register_buffer("delays", torch.arange(config.n_columns), persistent=False)
        self.register_buffer("code_lows", code_lows, persistent=False)
        self.register_buffer("bridge", between, persistent=False)
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `PlanError`, see `models.opuslm.prompt.plan`."""
        return prompt.plan(request, self.spec, self.config, self.tokenizer, self.voices)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """Text of text ids; an incomplete last character is held back."""
        own = [idx - self.config.text[0] for idx in ids]
        return self.tokenizer.decode(own, skip_special_tokens=True).rstrip(UNFINISHED)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The sum over columns, blanks too."""
        x: Tensor = self.table(ids)
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of each column's own ids."""
        logits: list[Tensor] = self.head(hidden)
        return logits

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """The end, which is the first id of the first column: not too early, and not too late.

        Source: the reference's `minlen` and `maxlen`; it stops early enough for the last frame.
        """
        is_text, row = state[:, PHASE_COLUMN] == TEXT, state[:, ROW]
        is_early = row < torch.where(is_text, LEAST_TEXT, LEAST_FRAMES)
        is_late = row >= torch.where(is_text, state[:, MOST_TEXT], state[:, MOST])
        ends, others = logits[0][:, :1], logits[0][:, 1:]
        ends = ends.masked_fill((is_early & ~is_late).unsqueeze(1), -torch.inf)
        others = others.masked_fill(is_late.unsqueeze(1), -torch.inf)
        return [torch.cat([ends, others], dim=1), *logits[1:]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Text, the marks behind it, frames, and the rows that complete the last of them."""
        marks = self.config.ids
        phase, row, old_end = state[:, PHASE_COLUMN], state[:, ROW], state[:, END]
        is_text, is_bridge = phase == TEXT, phase == BRIDGE
        is_speech = ~(is_text | is_bridge)
        is_mark = ids[:, 0] == marks.end
        is_text_end, is_end = is_text & is_mark, (phase == AUDIO) & is_mark
        end = torch.where(is_end, row, old_end)

        speech = blank_outside(ids, row, end, self.delays, marks.pad)
        is_here = (row == end).unsqueeze(1) & (self.delays == 0)
        speech = torch.where(is_here, marks.end, speech)
        between = self.bridge[row.clamp(max=len(self.bridge) - 1)]
        first = torch.where(is_bridge, between, ids[:, 0]).unsqueeze(1)
        words = torch.where(self.delays == 0, first, marks.pad)
        rows = torch.where(is_speech.unsqueeze(1), speech, words)

        past = join_history(state[:, PAST:], rows[:, 1:])
        frame_idx = row - self.config.dac.n_codebooks
        is_bridged = is_bridge & (row == len(self.bridge) - 1)
        next_phase = torch.where(is_text_end, BRIDGE, phase)
        next_phase = torch.where(is_bridged, AUDIO, next_phase)
        next_phase = torch.where(is_end, DRAIN, next_phase)
        next_row = torch.where(is_text_end | is_bridged, 0, row + 1)
        head = [next_phase, next_row, end, state[:, MOST], state[:, MOST_TEXT]]
        is_spoken = is_speech & (frame_idx >= end - 1)
        return Advance(
            rows=rows,
            state=torch.cat([torch.stack(head, dim=1), past[:, 1:].flatten(1)], dim=1),
            frames=self._frames(past),
            emits=is_speech & (frame_idx >= 0) & (frame_idx < end),
            text_ids=torch.where(is_text & ~is_text_end, ids[:, 0], -1),
            # An end that the limit forced is none of the model's: the engine counts the frames.
            is_finished=is_spoken & (end < state[:, MOST]),
            is_starved=torch.zeros_like(is_text),
        )

    def _frames(self, past: Tensor) -> Tensor:
        """The codes `(B, Q)` of the frame that the newest row completes."""
        codes = completed_frame(past, self.delays[:-1]) - self.code_lows
        return codes.clamp(0, self.config.dac.n_codes - 1)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.espnet_dac`."""
        return self.dac.decode(frames, n_valid, state, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds a model that only speaks, by what its files state."""
    return is_opuslm(folder, is_dialogue=False)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return model_spec(read_opuslm_config(folder), voice_names(folder))


def load(folder: Path) -> OpusLmModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_opuslm_config(folder)
    weights = read_lm(folder, config)
    dac = load_espnet_dac(dac_folder(folder))
    voices = read_voices(folder, config)
    return OpusLmModel(config, _read_tokenizer(folder, config), weights, dac, voices)


def _read_tokenizer(folder: Path, config: OpusLmConfig) -> Tokenizer:
    source = tokenizer_source(read_yaml(folder / CONFIG))
    place = folder / TOKENIZER_FOLDER
    if not place.is_dir():
        raise WeightError(f"{folder} has no tokenizer: put that of {source} into {place}")
    tokenizer = read_tokenizer(place)
    low, high = config.text
    n_ids = tokenizer.get_vocab_size()
    if n_ids > high - low:
        raise WeightError(
            f"{place} has a tokenizer of {n_ids} ids, and {CONFIG} has room for {high - low} in "
            f"token_bias.text_bpe: put that of {source} there"
        )
    return tokenizer

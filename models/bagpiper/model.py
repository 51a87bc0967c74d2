"""`bagpiper`, put together to the contract of `models.base`: text first, then guided speech.

Served is speech of text. The encoder of heard audio in the checkpoint is left aside, and a message
of another kind than text or audio is never begun. What differs from the reference by default:
`models.bagpiper.phases`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer
from torch import Tensor

from models.bagpiper import prompt
from models.bagpiper.config import (
    BagpiperConfig,
    is_bagpiper,
    read_bagpiper_config,
    weights_file,
)
from models.bagpiper.facts import FACTS, column_ids, model_spec
from models.bagpiper.phases import PhaseMachine
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import Taker, read_torch_file
from models.codecs.windowed import decode_window
from models.codecs.xcodec import decoding_part, make_xcodec
from models.errors import WeightError
from models.hugging_face import load_decoder, make_decoder, read_tokenizer
from models.layers.columns import ColumnHead, ColumnTable
from models.module import ModelModule
from models.spec import ModelSpec, PlanRequest

__all__ = ["FACTS", "BagpiperModel", "is_in", "load", "read_spec"]

logger = logging.getLogger(__name__)

CODEC: Final = "multimodal_io_dict.discrete_audio.codec_model."
ENCODER: Final = ("multimodal_io_dict.continuous_audio.", "adaptor.continuous_audio.")
"""Parts of the checkpoint that hear; they are known, and not used."""
UNKNOWN_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"


class BagpiperModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: by the checkpoint's keys, those of the codec included.
        forces_delays: see `models.bagpiper.phases`.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: BagpiperConfig,
        tokenizer: Tokenizer,
        weights: dict[str, Tensor],
        *,
        forces_delays: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config, forces_delays=forces_delays)
        self.tokenizer = tokenizer
        self.phases = PhaseMachine(config, forces_delays=forces_delays)
        left = dict(weights)
        codec = {key: left.pop(key) for key in list(left) if key.startswith(CODEC)}
        self.codec = make_xcodec(config.codec, decoding_part(codec, CODEC), source=CODEC)
        _drop_unused(left, config)
        take = Taker(left, "the checkpoint")
        n_ids, hidden = config.decoder.n_ids, config.decoder.backbone.hidden
        # Row 0 of the table is kept: it is what the companion of a guided stream is made of.
        table = take("model.embed_tokens.weight", n_ids, hidden)
        self.table = ColumnTable(table.detach(), is_zero_blank=True)
        shifts = take("stream_emb.weight", config.n_columns, hidden).detach().clone()
        # The reference has no shift for the first column, whatever the weights hold.
        shifts[0] = 0.0
        ranges = [[column_ids(config, n)] for n in range(config.n_columns)]
        head = take("lm_head.weight", n_ids, hidden).detach()
        self.head = ColumnHead(head, shifts, ranges)
        self.decoder = make_decoder(config.decoder)
        load_decoder(self.decoder, left, "model.", source="the checkpoint")
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Raises: `PlanError`, see `models.bagpiper.prompt.plan`."""
        return prompt.plan(request, self.spec, self.config, self.tokenizer)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """What the model writes before it speaks; an unfinished last character is held back."""
        low = self.config.text_ids[0]
        text: str = self.tokenizer.decode([idx - low for idx in ids], skip_special_tokens=True)
        return text.rstrip(UNKNOWN_CHARACTER)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The sum over columns; a blank adds nothing but in the first."""
        x: Tensor = self.table(ids)
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """All columns from the same hidden state, by one head."""
        logits: list[Tensor] = self.head(hidden)
        return logits

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Ends and the kind of a message, where the state decides."""
        return [self.phases.constrain(state, logits[0]), *logits[1:]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `models.bagpiper.phases`."""
        return self.phases.advance(state, ids)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.windowed.decode_window`."""
        return decode_window(self.codec, frames, n_valid, state, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_bagpiper(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return model_spec(read_bagpiper_config(folder))


def load(folder: Path, *, forces_delays: bool = True) -> BagpiperModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_bagpiper_config(folder)
    weights = read_torch_file(weights_file(folder))
    tokenizer = read_tokenizer(config.tokenizer)
    return BagpiperModel(config, tokenizer, weights, forces_delays=forces_delays)


def _drop_unused(weights: dict[str, Tensor], config: BagpiperConfig) -> None:
    """Take out what is known and serves other ends. Raises: `WeightError`."""
    n_ids = config.decoder.n_ids
    # How much each id counted in training.
    losses = weights.pop("vocab_weight", None)
    if losses is not None and losses.shape != (n_ids,):
        message = f"the checkpoint: vocab_weight is {tuple(losses.shape)}, expected ({n_ids},)"
        raise WeightError(message)
    hearing = [key for key in weights if key.startswith(ENCODER)]
    if bool(hearing) != config.has_encoder:
        stated = "states" if config.has_encoder else "does not state"
        held = f"has {hearing[0]}" if hearing else f"has no {ENCODER[0]}*"
        raise WeightError(f"the training config {stated} continuous_audio; the checkpoint {held}")
    if hearing:
        logger.info("the encoder of heard audio (%d tensors) is not used", len(hearing))
    for key in hearing:
        del weights[key]

"""`orpheus`, put together to the contract of `models.base`: text in, seven ids a frame out.

Unlike the reference, a row can only hold a code of its own slot, so that one odd draw does not
shift all frames after it; code 0 counts like any other; and no frame is lost at the ends (there the
first and the last two are never heard).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.checkpoint import read_safetensors, take
from models.codecs.snac import Snac, load_snac
from models.codecs.windowed import decode_window
from models.hugging_face import load_decoder, make_decoder, read_tokenizer
from models.layers.linear import linear_of
from models.mapped import own
from models.module import ModelModule
from models.orpheus import prompt
from models.orpheus.config import (
    CODES,
    FACTS,
    N_SLOTS,
    SLOT_ORDER,
    OrpheusConfig,
    is_orpheus,
    model_spec,
    read_orpheus_config,
    snac_folder,
)
from models.spec import PHASE_COLUMN, ModelSpec, PlanRequest

__all__ = ["FACTS", "OrpheusModel", "is_in", "load", "read_spec"]

ROW = PHASE_COLUMN + 1
"""Place in a stream's state: rows generated."""


class OrpheusModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM, by the checkpoint's keys.
        snac: the detokenizer.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: OrpheusConfig,
        tokenizer: Tokenizer,
        weights: Mapping[str, Tensor],
        snac: Snac,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config)
        self.tokenizer = tokenizer
        self.snac = snac
        self.decoder = make_decoder(config.llama)
        table, head, layers = _split(weights, config)
        load_decoder(self.decoder, layers, "model.", source="model.safetensors")
        low, high = config.id_range
        n_ids, hidden = table.shape
        self.table = nn.Embedding(n_ids, hidden, _weight=own(table, torch.float32))
        rows = self.table.weight[low:high]
        self.head = linear_of(rows if head is None else own(head[low:high], torch.float32))
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `PlanError`, see `models.orpheus.prompt.plan`."""
        return prompt.plan(request, self.spec, self.config.ids, self.tokenizer)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        x: Tensor = self.table(ids[:, 0])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the stop id and the codes; the text ids of the head are never computed."""
        return [self.head(hidden)]

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Only codes of the row's slot, or the stop id."""
        low, high = self.config.id_range
        ids = torch.arange(low, high, device=state.device)
        slot_of_id = torch.div(
            ids - self.config.ids.first_code, self.config.snac.n_codes, rounding_mode="floor"
        )
        is_own = slot_of_id == (state[:, ROW] % N_SLOTS).unsqueeze(1)
        is_stop = ids == self.config.ids.speech_end
        return [torch.where(is_own | is_stop, logits[0], -torch.inf)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Keep the code of the slot; the seventh completes the frame, a stop drops what is open."""
        is_end = ids[:, 0] == self.config.ids.speech_end
        slot = state[:, ROW] % N_SLOTS
        code = ids[:, 0] - self.config.ids.first_code - slot * self.config.snac.n_codes
        here = torch.arange(N_SLOTS, device=state.device) == slot.unsqueeze(1)
        codes = torch.where(here, code.unsqueeze(1), state[:, CODES:])
        return Advance(
            rows=ids,
            state=torch.cat([state[:, :ROW], state[:, ROW : ROW + 1] + 1, codes], dim=1),
            frames=torch.stack([codes[:, at] for at in SLOT_ORDER], dim=1),
            emits=(slot == N_SLOTS - 1) & ~is_end,
            text_ids=torch.full_like(slot, -1),
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
        """See `models.codecs.windowed.decode_window`."""
        return decode_window(self.snac, frames, n_valid, state, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_orpheus(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    return model_spec(read_orpheus_config(folder))


def load(folder: Path) -> OrpheusModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_orpheus_config(folder)
    return OrpheusModel(
        config, read_tokenizer(folder), read_safetensors(folder), load_snac(snac_folder(folder))
    )


def _split(
    weights: Mapping[str, Tensor], config: OrpheusConfig
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Table, head (None where it is the table) and the rest. Raises: `WeightError`."""
    layers = dict(weights)
    shape, source = (config.llama.n_ids, config.llama.backbone.hidden), "model.safetensors"
    table = take(layers, "model.embed_tokens.weight", shape, source=source)
    has_head = not config.is_tied or "lm_head.weight" in layers
    head = take(layers, "lm_head.weight", shape, source=source) if has_head else None
    return table, None if config.is_tied else head, layers

"""Weights of `opuslm` checkpoints, as ESPnet saves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from models.checkpoint import read_torch_file, take
from models.errors import WeightError
from models.opuslm.config import OpusLmConfig, lm_weights

TABLE: Final = "corelm.emb.weight"
HEAD: Final = "corelm.lm_head.weight"
SHIFTS: Final = "corelm.head_emb.weight"
DECODER: Final = "corelm.decoders.model."
TRAINING: Final = "criterion."
"""Prefix of what only training used: the reference model of preference training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LmWeights:
    """The tensors of the LM.

    Args:
        table: `(V, H)` of all columns.
        head: `(V, H)` of all columns.
        shifts: `(K, H)`, added to the hidden state before the head, a row for each column.
        decoder: by the checkpoint's keys.
        source: the file.
    """

    table: Tensor
    head: Tensor
    shifts: Tensor
    decoder: Mapping[str, Tensor]
    source: str


def read_lm(folder: Path, config: OpusLmConfig) -> LmWeights:
    """The LM of a checkpoint. Raises: `WeightError`, it names the file or the key."""
    path = lm_weights(folder)
    tensors = read_torch_file(path)
    left = {key: t for key, t in tensors.items() if not key.startswith(TRAINING)}
    source, shape = path.name, (config.decoder.n_ids, config.decoder.backbone.hidden)
    table = take(left, TABLE, shape, source=source)
    head = left.pop(HEAD, table) if config.is_tied else take(left, HEAD, shape, source=source)
    shifts = left.pop(SHIFTS, None)
    if shifts is None or shifts.dim() != 2 or shifts.shape[1] != shape[1]:
        raise _unfit(SHIFTS, shifts, source, f"(columns, {shape[1]})")
    if len(shifts) < config.n_columns:
        raise _unfit(SHIFTS, shifts, source, f"a row for each of {config.n_columns} columns")
    return LmWeights(
        table=table, head=head, shifts=shifts[: config.n_columns], decoder=left, source=source
    )


def _unfit(key: str, tensor: Tensor | None, source: str, wanted: str) -> WeightError:
    found = "is missing" if tensor is None else f"is {tuple(tensor.shape)}"
    return WeightError(f"{source}: {key} {found}, expected {wanted}")

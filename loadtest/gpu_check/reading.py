"""How many bytes of weights one decode step reads: what no step can be faster than.

Counted while the functions of a step are called, and not by name: a matrix counts each time that it
is multiplied by, so the weights of a depth model count once for each codebook; of a table that is
looked up the rows that are taken count, and not the table.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.attention.depth import DepthKV
from loadtest.gpu_check.depth import depth_loop
from loadtest.gpu_check.where import Where
from models.base import SpeechModel

_aten: Final = torch.ops.aten
LOOK_UPS: Final = (
    _aten.embedding.default,
    _aten.index.Tensor,
    _aten.index_select.default,
    _aten.gather.default,
)


def step_bytes(model: SpeechModel, where: Where) -> int:
    """Bytes of weights that a step of one stream reads, its depth loop included."""
    assert isinstance(model, nn.Module), "all models here have weights"
    spec = model.spec
    ids = torch.zeros((1, spec.n_columns), dtype=torch.int64, device=where.device)
    zero = torch.zeros(1, dtype=torch.int64, device=where.device)
    reading = _Reading(model)
    with torch.inference_mode(), reading:
        hidden = model.backbone(model.embed(ids, zero), zero, lambda layer_idx, q, k, v: q)
        model.heads(hidden)
        if spec.depth is not None:
            depth_loop(model, hidden, DepthKV(spec.depth, 1, where.device, where.dtype))
    return reading.n_bytes


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts what operations take of the tensors of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.n_bytes: int = 0
        parts = (*module.parameters(), *module.buffers())
        self._weights = {part.untyped_storage().data_ptr() for part in parts}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  torch's
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Call `func`, and count."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for part in tree_leaves((args, kwargs)):
                if isinstance(part, Tensor) and self._is_weight(part):
                    self.n_bytes += out.nbytes if func in LOOK_UPS else part.nbytes
        return out

    def _is_weight(self, part: Tensor) -> bool:
        return part.untyped_storage().data_ptr() in self._weights

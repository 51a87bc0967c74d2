"""Linear layers, and weights laid out for the CPU that multiplies by them.

A decode step multiplies a few rows by every weight of the model. The library behind plain products
reads a matrix row by row; oneDNN lays it out once in blocks that fit the vector registers. One
thread of a Zen 5 core, a 35,672 x 768 matrix: 1, 4 and 16 rows take 2.6, 3.1 and 5.7 ms instead of
6.1, 10.5 and 15.0 in float32, and 1.3, 1.7 and 2.8 ms instead of 3.4, 3.5 and 4.8 in bfloat16.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

SMALLEST: Final = 2**16
"""Elements of a matrix that is worth it: a smaller one is done sooner than oneDNN is called."""
_USUAL_ROWS: Final = 8
"""Rows that the layout is chosen for. One row alone would choose another, slower with more."""


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer of `weight` (n_out, n_in) and `bias` (n_out,) as they are, without a copy."""
    n_out, n_in = weight.shape
    layer = nn.Linear(n_in, n_out, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


@runtime_checkable
class Packable(Protocol):
    """A layer that multiplies rows by a matrix, though it is no linear one by name."""

    def as_linear(self) -> nn.Linear | None:
        """The matrix as a linear layer; None if it was replaced."""
        ...

    def replace_by(self, layer: nn.Module) -> None:
        """Multiply by `layer` from now on, and give the own weight up."""
        ...


class PackedLinear(nn.Module):
    """A linear layer whose weight lies as oneDNN reads it; for inference on a CPU.

    Args:
        layer: whose weight is copied; its bias is kept.
    """

    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = layer.weight.dtype
        # Opaque to everything but the operator below, so no parameter and no buffer.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _USUAL_ROWS)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map `(..., n_in)` to `(..., n_out)`."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out

    def extra_repr(self) -> str:
        """As `nn.Linear` shows itself."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.dtype}"


def pack(model: object, smallest: int = SMALLEST) -> int:
    """Replace the linear layers of `model` by packed ones, where this machine gains by it.

    A replaced layer gives up its weight; one that is tied to a table leaves the table as it is.
    The model can then no more be moved, cast or saved.

    Args:
        model: on the CPU, in the precision that it runs in. What is no module has no layers.
        smallest: linear layers with fewer elements stay as they are; what else is a matrix gets so
            many rows that size does not matter.

    Returns:
        How many layers were replaced.
    """
    if not isinstance(model, nn.Module):
        return 0
    packed: dict[nn.Module, PackedLinear] = {}
    for parent in list(model.modules()):
        if isinstance(parent, Packable):
            layer = parent.as_linear()
            if layer is not None and _is_worth_it(layer, 0):
                packed[layer] = PackedLinear(layer)
                parent.replace_by(packed[layer])
        # Not `named_children`, which shows a module of two names under one.
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Linear and _is_worth_it(child, smallest):
                if child not in packed:
                    packed[child] = PackedLinear(child)
                setattr(parent, name, packed[child])
    return len(packed)


def _is_worth_it(layer: nn.Linear, smallest: int) -> bool:
    weight = layer.weight
    return weight.numel() >= smallest and weight.device.type == "cpu" and _has_kernel(weight.dtype)


@cache
def _has_kernel(dtype: torch.dtype) -> bool:
    """Whether this build of torch and this CPU multiply packed weights of a precision."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    operators = ("_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(torch.ops.mkldnn, name) for name in operators)

"""FlashInfer's kernels behind the shared layers, where the engine has switched them on.

Each layer has a plain torch form too: it says what is computed, runs on the CPU and in float32, and
is what the kernels are compared with. A layer asks `kernels_for` with its input and takes the plain
form where it gets None. Switched once, before the first call, by the thread that makes the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

HALF: Final = (torch.float16, torch.bfloat16)
HEAD_DIMS: Final = (64, 128, 256)
"""Head sizes that both rotary and attention kernels know."""


@dataclass(slots=True)
class _Switch:
    kernels: Any = None
    device_type: str = ""


_switch = _Switch()


def switch_on(kernels: Any, device_type: str = "cuda") -> None:  # noqa: ANN401  an untyped module
    """Use the module `flashinfer` for half-precision tensors on such devices; None: nowhere."""
    _switch.kernels, _switch.device_type = kernels, device_type


def kernels_for(x: Tensor, weight: Tensor | None = None) -> Any:  # noqa: ANN401  as above
    """The kernels for a layer's input and weight, or None: then the plain form is to be taken."""
    if _switch.kernels is None or x.device.type != _switch.device_type or x.dtype not in HALF:
        return None
    if x.stride(-1) != 1 or (weight is not None and weight.dtype != x.dtype):
        return None
    return _switch.kernels

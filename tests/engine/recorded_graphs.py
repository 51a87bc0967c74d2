"""A double of CUDA graphs on the CPU: it records operations and replays them on the same tensors.

What holds there holds here. While recording the host may read nothing of the device, and bring
nothing to it. A replay runs the recorded operations on the recorded tensors and nothing else: what
the host decided or passed when it recorded stays so, and what is not in a fixed buffer is not seen.
Intermediate results are spoilt after each replay, as another graph of the pool may write there.
"""

from __future__ import annotations

import math
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.graphs import Call, Outputs

HOST_READS = (
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.resolve_conj.default,  # of `tolist` and `numpy`
    torch.ops.aten.nonzero.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
)
HOST_VALUES = (torch.ops.aten.lift_fresh.default,)


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple] = []
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in HOST_READS or _is_index_by_mask(func, args):
            raise RuntimeError(f"operation not permitted while recording: {func}")
        # A number in an assignment is no transfer on a GPU: it is written there by a kernel.
        if func in HOST_VALUES and args[0].dim() > 0:
            raise RuntimeError("a tensor was made of host values while recording")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, out))
        taken = {_memory(leaf) for leaf in tensors((args, kwargs))}
        self.made += [leaf for leaf in tensors(out) if _memory(leaf) not in taken]
        return out


def record(call: Call) -> Call:
    """As `engine.graphs.cuda_recorder`."""
    # What models do for the sake of a CPU they leave to compilers: then they do as on a GPU.
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        call()
        with _Recording() as recording:
            outputs = call()

    def replay() -> Outputs:
        for func, args, kwargs, out in recording.steps:
            again = func(*args, **kwargs)
            for old, new in zip(tensors(out), tensors(again), strict=True):
                if _memory(old) != _memory(new):
                    old.copy_(new)
        copies = tuple(output.clone() for output in outputs)
        for tensor in recording.made:
            tensor.fill_(math.nan if tensor.is_floating_point() else 1)
        return copies

    return replay


def _is_index_by_mask(func: object, args: tuple) -> bool:
    """An index whose result has a size that only the device knows."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return any(part.dtype == torch.bool for part in tensors(args[1]))


def tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    # Weights packed for a CPU have no storage that can be named.
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()

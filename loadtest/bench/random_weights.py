"""Random weights in the layout of checkpoints, made fast: their values change no cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor, nn

NORMS: Final = ("norm.weight", "norm1.weight", "norm2.weight")
_POOL = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.02


def draw(*shape: int) -> Tensor:
    """Random weights in bfloat16, as checkpoints are published."""
    return fill(torch.empty(shape, dtype=torch.bfloat16))


def fill(tensor: Tensor) -> Tensor:
    """Random values from a pool that is drawn once: billions of draws would take minutes."""
    flat = tensor.detach().view(-1)
    for start in range(0, flat.numel(), _POOL.numel()):
        part = flat[start : start + _POOL.numel()]
        part.copy_(_POOL[: part.numel()])
    return tensor


@torch.no_grad()
def random_model(make: Callable[[], Any]) -> Any:  # noqa: ANN401  of an untyped library
    """What `make` gives, in bfloat16, without the library's own slow draws."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model: nn.Module = make()
    finally:
        torch.set_default_dtype(before)
    model.to_empty(device="cpu")
    for name, tensor in model.state_dict().items():
        if name.endswith("cluster_usage") or (tensor.dim() == 1 and name.endswith(NORMS)):
            tensor.fill_(1.0)
        elif tensor.is_floating_point():
            fill(tensor)
        else:
            tensor.zero_()
    return model


def save_tokenizer(folder: Path, marks: Sequence[str]) -> int:
    """A tokenizer of bytes with `marks` behind them. Gives the number of its ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: idx for idx, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(marks))
    tokenizer.save(str(folder / "tokenizer.json"))
    return int(tokenizer.get_vocab_size())

"""Tensors that lie in files: mapped, never read whole, and given back once they were copied.

A mapped tensor takes memory only where it has been read, and that memory is the system's to take
again. So a model is loaded with its own memory and one tensor more, whatever the size of its files.

NOTE: nothing may write to a mapped tensor: what was written is lost when its pages are given back.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import torch
from safetensors import safe_open
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Source: the safetensors format, README of its repository."""
_LENGTH_BYTES: Final = 8

_maps: WeakSet[mmap.mmap] = WeakSet()


def map_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by key.

    Raises:
        SafetensorError: the file is damaged or cut short.
        OSError: it cannot be read.
        ValueError: a tensor is of a kind of number that is not known here.
    """
    # The library checks the header; where the tensors lie it does not tell.
    with safe_open(path, framework="pt", device="cpu"):
        pass
    mapped = _map(path)
    n_header = int.from_bytes(mapped[:_LENGTH_BYTES], "little")
    first_byte = _LENGTH_BYTES + n_header
    header: dict[str, Any] = json.loads(mapped[_LENGTH_BYTES:first_byte])
    header.pop("__metadata__", None)
    tensors = {}
    for key, entry in header.items():
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{key} is of {entry['dtype']}, one of {', '.join(_DTYPES)} is known")
        begin, end = entry["data_offsets"]
        flat = _flat(mapped, dtype, first_byte + begin, end - begin)
        tensors[key] = flat.view(entry["shape"])
    return tensors


def map_torch_file(path: Path) -> Any:  # noqa: ANN401  whatever the file holds
    """What a torch file holds, its tensors mapped. No code of the file is run.

    Raises:
        Exception: what torch's parsers raise: zip, pickle and runtime errors.
    """
    # Under this mode torch reads no tensor but notes where each lies, in `_checkpoint_offset`.
    with FakeTensorMode():
        held = torch.load(path, map_location="cpu", weights_only=True)
    return _mapped_in(held, _map(path))


def give_back() -> None:
    """Let the system take the memory in which mapped tensors were read; they are read again."""
    for mapped in list(_maps):
        mapped.madvise(mmap.MADV_DONTNEED)


def own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of a tensor, which may be a mapped one, in memory of its own."""
    copy = tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
    give_back()
    return copy


def fill(target: Tensor, parts: Iterable[Tensor]) -> None:
    """Copy `parts`, which may be mapped, into `target` one after another along its first axis."""
    if target.dim() == 0:
        parts, target = [part.unsqueeze(0) for part in parts], target.unsqueeze(0)
    row = 0
    for part in parts:
        target[row : row + len(part)].copy_(part)
        row += len(part)
    give_back()


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        # A private copy, so that torch takes it; it is written by nobody.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    _maps.add(mapped)
    return mapped


def _mapped_in(held: object, mapped: mmap.mmap) -> object:
    """`held` with mapped tensors in place of those that stand for them."""
    if isinstance(held, dict):
        return {key: _mapped_in(one, mapped) for key, one in held.items()}
    if not isinstance(held, Tensor):
        return held
    storage = held.untyped_storage()
    flat = _flat(mapped, held.dtype, _offset_of(storage), storage.nbytes())
    return flat.as_strided(held.shape, held.stride(), int(held.storage_offset()))


def _offset_of(storage: Any) -> int:  # noqa: ANN401  torch states no type for it
    return int(storage._checkpoint_offset)


def _flat(mapped: mmap.mmap, dtype: torch.dtype, first_byte: int, n_bytes: int) -> Tensor:
    if n_bytes == 0:
        return torch.empty(0, dtype=dtype)
    count = n_bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=first_byte)

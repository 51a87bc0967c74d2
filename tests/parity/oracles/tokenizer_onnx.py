"""The speech tokenizer's weights as an ONNX file that has the names of the published one.

That file cannot be had here; its names are those that s3tokenizer 0.3.0 looks for. The graph holds
the nodes that tell what each weight is, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

CONVS = {
    "encoder.conv1.weight": "onnx::Conv_2216",
    "encoder.conv1.bias": "onnx::Conv_2217",
    "encoder.conv2.weight": "onnx::Conv_2218",
    "encoder.conv2.bias": "onnx::Conv_2219",
}
PROJECTION = "quantizer._codebook.project_down"
State = dict[str, torch.Tensor]
Node = tuple[onnx.NodeProto, State]
"""And the weights that it is given."""


def save_onnx(state: State, path: Path) -> None:
    """Write a state dict with s3tokenizer's keys."""
    made = list(_nodes(state))
    held = {name: tensor for _, given in made for name, tensor in given.items()}
    initializers = [numpy_helper.from_array(x.numpy().copy(), name) for name, x in held.items()]
    graph = helper.make_graph([node for node, _ in made], "g", [], [], initializers)
    onnx.save(helper.make_model(graph), str(path))


def _nodes(state: State) -> Iterator[Node]:
    """In the order of an exported graph."""
    for name in ("encoder.conv1", "encoder.conv2"):
        given = {CONVS[f"{name}.{part}"]: state[f"{name}.{part}"] for part in ("weight", "bias")}
        yield helper.make_node("Conv", ["x", *given], [name], name=f"/{name[8:]}/Conv"), given
    number = 2220
    n_layers = len({key.split(".")[2] for key in state if key.startswith("encoder.blocks.")})
    for idx in range(n_layers):
        stem = f"/blocks.{idx}"
        for part in ("attn_ln", "attn.query", "attn.key", "attn.value", "attn.fsmn_block"):
            yield from _part_nodes(state, stem, part, number)
            number += 2
        scale = numpy_helper.from_array(np.array(0.35, dtype=np.float32))
        yield helper.make_node("Constant", [], ["scale"], name=f"{stem}/attn/C", value=scale), {}
        yield helper.make_node("Mul", ["q", "scale"], ["scaled"], name=f"{stem}/attn/Mul"), {}
        for part in ("attn.out", "mlp_ln", "mlp.0", "mlp.2"):
            yield from _part_nodes(state, stem, part, number)
            number += 2
    given = {"onnx::MatMul_2536": state[f"{PROJECTION}.weight"].T}
    name = "/quantizer/project_in"
    yield helper.make_node("MatMul", ["rows", *given], [name], name=f"{name}/MatMul"), given
    given = {"quantizer.project_in.bias": state[f"{PROJECTION}.bias"]}
    yield helper.make_node("Add", [*given, name], ["levels"], name=f"{name}/Add"), given


def _part_nodes(state: State, stem: str, part: str, number: int) -> Iterator[Node]:
    """The nodes of one module of a block."""
    key = f"encoder.{stem[1:]}.{part}"
    path = f"{stem}/{part.replace('.', '/').replace('mlp/', 'mlp/mlp.')}"
    weight = state[f"{key}.weight"]
    if part.endswith("ln"):
        given = {f"{key[8:]}.weight": weight, f"{key[8:]}.bias": state[f"{key}.bias"]}
        name = f"{path}/LayerNormalization"
        yield helper.make_node("LayerNormalization", ["x", *given], [path], name=name), given
        return
    if part == "attn.fsmn_block":
        given = {f"{key[8:]}.weight": weight}
        yield helper.make_node("Conv", ["x", *given], [path], name=f"{path}/Conv"), given
        return
    given = {f"onnx::MatMul_{number}": weight.T}
    yield helper.make_node("MatMul", ["x", *given], [path], name=f"{path}/MatMul"), given
    if part != "attn.key":
        given = {f"{key[8:]}.bias": state[f"{key}.bias"]}
        yield helper.make_node("Add", [*given, path], [f"{path}+"], name=f"{path}/Add"), given

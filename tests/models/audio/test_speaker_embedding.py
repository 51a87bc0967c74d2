"""The speaker embedding: every length, both kinds of files, files that do not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from models.audio.speaker_embedding import CamPlus, OnnxCamPlus
from models.errors import WeightError
from tests.models.audio.tiny import camplus_weights, write_camplus_onnx


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("camplus") / "campplus.onnx"
    write_camplus_onnx(path)
    return path


def noise(n_samples: int) -> torch.Tensor:
    return 0.1 * torch.randn(n_samples, generator=torch.Generator().manual_seed(n_samples))


@pytest.mark.parametrize("n_samples", [1, 399, 400, 720, 1_039, 1_040, 16_000, 48_123])
def test_both_files_give_the_same_vector_of_any_length(onnx_file, n_samples):
    vectors = [
        embedder.embed(noise(n_samples))
        for embedder in (CamPlus(camplus_weights(), source="it"), OnnxCamPlus(onnx_file))
    ]
    assert vectors[0].shape == (192,)
    assert vectors[0].isfinite().all()
    assert (vectors[0] - vectors[1]).abs().max() < 1e-4


def test_silence_has_a_vector():
    assert CamPlus(camplus_weights(), source="it").embed(torch.zeros(16_000)).isfinite().all()


def test_counters_of_training_may_be_missing():
    weights = camplus_weights()
    full = CamPlus(weights, source="it").embed(noise(9_000))
    bare = {key: x for key, x in weights.items() if not key.endswith("num_batches_tracked")}
    assert torch.equal(CamPlus(bare, source="it").embed(noise(9_000)), full)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("head.conv1.weight"), "lacks head.conv1.weight"),
        (lambda w: w.update({"head.conv1.weight": torch.ones(())}), r"head.conv1.weight of \(\)"),
        (
            lambda w: w.update({"head.conv1.weight": torch.ones(0, 80, 3)}),
            r"head.conv1.weight of \(0, 80, 3\)",
        ),
        (lambda w: w.pop("head.bn1.running_mean"), "missing: head.bn1.running_mean"),
        (lambda w: w.update(surplus=torch.zeros(1)), "unexpected: surplus"),
        (lambda w: w.update({"head.bn1.bias": torch.zeros(3)}), r"head.bn1.bias is \(3,\)"),
    ],
)
def test_files_of_another_model_are_refused(change, named):
    weights = camplus_weights()
    change(weights)
    with pytest.raises(WeightError, match=named):
        CamPlus(weights, source="it")


def test_onnx_files_that_cannot_be_run_are_told(onnx_file, tmp_path):
    path = tmp_path / "campplus.onnx"
    with pytest.raises(WeightError, match="is missing"):
        OnnxCamPlus(path)
    whole = onnx_file.read_bytes()
    third = len(whole) // 3
    for damaged in (
        whole[:3_000],
        b"",
        whole[:third] + b"\x91" * 9 + whole[third + 9 :],
        b"\0" * 99,
    ):
        path.write_bytes(damaged)
        with pytest.raises(WeightError, match="is damaged or cut short"):
            OnnxCamPlus(path)


def test_without_the_package_that_runs_onnx_it_is_named(onnx_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(WeightError, match=r"needs the package onnxruntime: `pip install parley"):
        OnnxCamPlus(onnx_file)

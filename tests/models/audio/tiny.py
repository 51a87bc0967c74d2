"""Small random encoders in the layouts of their files, for tests of families that have one."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from models.audio.speaker_embedding import CamPlus
from tests.parity.oracles.tokenizer_onnx import save_onnx

Weights = dict[str, Tensor]


def speech_tokenizer_weights(*, hidden: int = 64, n_mels: int = 128, n_layers: int = 1) -> Weights:
    """Of `models.audio.speech_tokenizer`, by s3tokenizer's keys; heads have 64 channels."""
    generator = torch.Generator().manual_seed(31)
    weights: Weights = {}

    def draw(key: str, *shape: int) -> None:
        fan_in = max(1, torch.Size(shape[1:]).numel())
        weights[key] = torch.randn(shape, generator=generator) / fan_in**0.5

    def norm(stem: str) -> None:
        weights[f"{stem}.weight"], weights[f"{stem}.bias"] = torch.ones(hidden), torch.zeros(hidden)

    def linear(stem: str, n_in: int, n_out: int) -> None:
        draw(f"{stem}.weight", n_out, n_in)
        weights[f"{stem}.bias"] = 0.1 * torch.randn(n_out, generator=generator)

    for name, n_in in (("conv1", n_mels), ("conv2", hidden)):
        draw(f"encoder.{name}.weight", hidden, n_in, 3)
        draw(f"encoder.{name}.bias", hidden)
    for idx in range(n_layers):
        stem = f"encoder.blocks.{idx}"
        norm(f"{stem}.attn_ln")
        for part in ("query", "value", "out"):
            linear(f"{stem}.attn.{part}", hidden, hidden)
        draw(f"{stem}.attn.key.weight", hidden, hidden)
        draw(f"{stem}.attn.fsmn_block.weight", hidden, 1, 31)
        norm(f"{stem}.mlp_ln")
        linear(f"{stem}.mlp.0", hidden, 4 * hidden)
        linear(f"{stem}.mlp.2", 4 * hidden, hidden)
    linear("quantizer._codebook.project_down", hidden, 8)
    return weights


def write_speech_tokenizer_onnx(path: Path) -> None:
    """`speech_tokenizer_v2.onnx` of such weights, in the names of the published file."""
    save_onnx(speech_tokenizer_weights(), path)


def camplus_weights(
    *, size: int = 192, n_filters: int = 2, n_grown: int = 4, n_layers: tuple[int, ...] = (2, 1, 1)
) -> Weights:
    """Of `models.audio.speaker_embedding`, by Chatterbox's keys.

    Args:
        size: of the vector.
        n_filters: of the ResNet.
        n_grown: channels that a dense layer adds.
        n_layers: of each dense block.
    """
    generator = torch.Generator().manual_seed(32)
    weights: Weights = {}

    def conv(key: str, *shape: int) -> None:
        fan_in = torch.Size(shape[1:]).numel()
        weights[f"{key}.weight"] = torch.randn(shape, generator=generator) / fan_in**0.5

    def norm(stem: str, n: int) -> None:
        weights[f"{stem}.weight"] = 0.5 + torch.rand(n, generator=generator)
        weights[f"{stem}.bias"] = 0.1 * torch.randn(n, generator=generator)
        statistics(stem, n)

    def statistics(stem: str, n: int) -> None:
        weights[f"{stem}.running_mean"] = 0.1 * torch.randn(n, generator=generator)
        weights[f"{stem}.running_var"] = 0.5 + torch.rand(n, generator=generator)
        weights[f"{stem}.num_batches_tracked"] = torch.tensor(1)

    n = n_filters
    for stem, n_in in (("head.conv1", 1), ("head.conv2", n)):
        conv(stem, n, n_in, 3, 3)
        norm(stem.replace("conv", "bn"), n)
    for layer in ("head.layer1", "head.layer2"):
        for block in (f"{layer}.0", f"{layer}.1"):
            for part in ("1", "2"):
                conv(f"{block}.conv{part}", n, n, 3, 3)
                norm(f"{block}.bn{part}", n)
        conv(f"{layer}.0.shortcut.0", n, n, 1, 1)
        norm(f"{layer}.0.shortcut.1", n)
    width = 8
    conv("xvector.tdnn.linear", width, n * 10, 5)
    norm("xvector.tdnn.nonlinear.batchnorm", width)
    for idx, n_dense in enumerate(n_layers):
        for layer_idx in range(n_dense):
            stem = f"xvector.block{idx + 1}.tdnnd{layer_idx + 1}"
            norm(f"{stem}.nonlinear1.batchnorm", width)
            conv(f"{stem}.linear1", 2 * n_grown, width, 1)
            norm(f"{stem}.nonlinear2.batchnorm", 2 * n_grown)
            conv(f"{stem}.cam_layer.linear_local", n_grown, 2 * n_grown, 3)
            conv(f"{stem}.cam_layer.linear1", n_grown, 2 * n_grown, 1)
            conv(f"{stem}.cam_layer.linear2", n_grown, n_grown, 1)
            for part in ("linear1", "linear2"):
                bias = 0.1 * torch.randn(n_grown, generator=generator)
                weights[f"{stem}.cam_layer.{part}.bias"] = bias
            width += n_grown
        norm(f"xvector.transit{idx + 1}.nonlinear.batchnorm", width)
        conv(f"xvector.transit{idx + 1}.linear", width // 2, width, 1)
        width //= 2
    norm("xvector.out_nonlinear.batchnorm", width)
    conv("xvector.dense.linear", size, 2 * width, 1)
    statistics("xvector.dense.nonlinear.batchnorm", size)
    return weights


def write_camplus_onnx(path: Path) -> None:
    """`campplus.onnx` of such weights; its input may have any length."""
    model = CamPlus(camplus_weights(), source="tiny")
    with warnings.catch_warnings():
        # The exporter that needs no further package says that there is a newer one.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(1, 200, 80),),
            str(path),
            input_names=["input"],
            output_names=["output"],
            dynamic_axes={"input": {0: "batch", 1: "frames"}},
            dynamo=False,
        )

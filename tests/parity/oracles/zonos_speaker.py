"""A reference of Zonos' speaker encoder composed here, out of functions of torch.

No package has it; mel spectra are those of `transformers`. Without inputs it makes small random
files in the layout of the hub; with `pcm` at 16 kHz it gives `vector`.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

N_FILTERS, N_BLOCKS, N_MELS, N_ATTENTION, N_HIDDEN, SIZE = 4, (2, 3, 2, 1), 80, 12, 24, 16
ENCODER, PROJECTION = "ResNet293_SimAM_ASP_base.pt", "ResNet293_SimAM_ASP_base_LDA-128.pt"
State = dict[str, torch.Tensor]


def make(folder: Path) -> None:
    """Both files, every weight drawn."""
    torch.manual_seed(21)
    weights: State = {}

    def conv(name: str, *shape: int) -> None:
        fan_in = torch.tensor(shape[1:]).prod().item()
        weights[f"{name}.weight"] = torch.randn(shape) / fan_in**0.5

    def norm(name: str, size: int) -> None:
        weights[f"{name}.weight"] = 0.5 + torch.rand(size)
        weights[f"{name}.bias"] = 0.2 * torch.randn(size)
        weights[f"{name}.running_mean"] = 0.2 * torch.randn(size)
        weights[f"{name}.running_var"] = 0.5 + torch.rand(size)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(5)

    conv("front.conv1", N_FILTERS, 1, 3, 3)
    norm("front.bn1", N_FILTERS)
    n_in = N_FILTERS
    for stage, n_blocks in enumerate(N_BLOCKS):
        n_out = N_FILTERS << stage
        for block in range(n_blocks):
            stem = f"front.layer{stage + 1}.{block}"
            conv(f"{stem}.conv1", n_out, n_in, 3, 3)
            conv(f"{stem}.conv2", n_out, n_out, 3, 3)
            norm(f"{stem}.bn1", n_out)
            norm(f"{stem}.bn2", n_out)
            if n_in != n_out:
                conv(f"{stem}.downsample.0", n_out, n_in, 1, 1)
                norm(f"{stem}.downsample.1", n_out)
            n_in = n_out
    n_pooled = n_in * N_MELS // 8
    conv("pooling.attention.0", N_ATTENTION, n_pooled, 1)
    conv("pooling.attention.3", n_pooled, N_ATTENTION, 1)
    conv("bottleneck", N_HIDDEN, 2 * n_pooled)
    norm("pooling.attention.2", N_ATTENTION)
    for name, size in (("pooling.attention.0", N_ATTENTION), ("pooling.attention.3", n_pooled)):
        weights[f"{name}.bias"] = 0.1 * torch.randn(size)
    weights["bottleneck.bias"] = 0.1 * torch.randn(N_HIDDEN)
    own = folder / "speaker_embedding"
    own.mkdir()
    torch.save(weights, own / ENCODER)
    projection = {"weight": torch.randn(SIZE, N_HIDDEN) / 5, "bias": 0.1 * torch.randn(SIZE)}
    torch.save(projection, own / PROJECTION)


def bands(pcm: torch.Tensor) -> torch.Tensor:
    """Log energies of 25 ms every 10 ms, less their means over time."""
    filters = mel_filter_bank(257, N_MELS, 0.0, 8000.0, 16000, norm=None, mel_scale="htk")
    energies = spectrogram(
        pcm.numpy(),
        window_function(400, "hann", periodic=True, frame_length=512),
        frame_length=512,
        hop_length=160,
        fft_length=512,
        power=2.0,
    )
    logs = torch.log(torch.from_numpy(filters.T @ energies) + 1e-6)
    return (logs - logs.mean(1, keepdim=True)).float()


def vector(weights: State, projection: State, pcm: torch.Tensor) -> torch.Tensor:
    """The vector of a recording."""

    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        parts = (weights[f"{name}.{part}"] for part in ("running_mean", "running_var"))
        return functional.batch_norm(x, *parts, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def block(stem: str, x: torch.Tensor, stride: int) -> torch.Tensor:
        y = functional.conv2d(x, weights[f"{stem}.conv1.weight"], stride=stride, padding=1)
        y = functional.relu(normed(f"{stem}.bn1", y))
        y = normed(f"{stem}.bn2", functional.conv2d(y, weights[f"{stem}.conv2.weight"], padding=1))
        # SimAM: a map's variance is that of a sample, over all but one of its places.
        off = (y - y.mean((2, 3), keepdim=True)) ** 2
        energy = off / (4 * (y.var((2, 3), keepdim=True) + 1e-4)) + 0.5
        y = y * torch.sigmoid(energy)
        if f"{stem}.downsample.0.weight" in weights:
            x = functional.conv2d(x, weights[f"{stem}.downsample.0.weight"], stride=stride)
            x = normed(f"{stem}.downsample.1", x)
        return functional.relu(y + x)

    x = functional.conv2d(bands(pcm)[None, None], weights["front.conv1.weight"], padding=1)
    x = functional.relu(normed("front.bn1", x))
    for stage, n_blocks in enumerate(N_BLOCKS):
        for number in range(n_blocks):
            stride = 2 if stage and not number else 1
            x = block(f"front.layer{stage + 1}.{number}", x, stride)
    x = x.reshape(1, -1, x.shape[-1])
    stem = "pooling.attention"
    w = functional.relu(
        functional.conv1d(x, weights[f"{stem}.0.weight"], weights[f"{stem}.0.bias"])
    )
    w = functional.conv1d(
        normed(f"{stem}.2", w), weights[f"{stem}.3.weight"], weights[f"{stem}.3.bias"]
    )
    w = torch.softmax(w, 2)
    mean = (w * x).sum(2)
    deviation = ((w * x**2).sum(2) - mean**2).clamp(1e-5).sqrt()
    pooled = torch.cat([mean, deviation], 1)
    x = functional.linear(pooled, weights["bottleneck.weight"], weights["bottleneck.bias"])
    return functional.linear(x, projection["weight"], projection["bias"])[0]


folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
outputs = {}
if not inputs:
    make(folder)
else:
    own = folder / "speaker_embedding"
    files = [torch.load(own / name, weights_only=True) for name in (ENCODER, PROJECTION)]
    outputs["vector"] = vector(*files, inputs["pcm"])
save_file(outputs, folder / "outputs.safetensors")

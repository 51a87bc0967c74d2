"""The speaker embedding of CosyVoice 2, Chatterbox and Step-Audio 2: CAM++. Worker threads.

A small ResNet over Kaldi's filter bank, densely joined layers that listen to a neighbourhood and to
the mean around it, and mean and deviation over time. Chatterbox has it as tensors
(`speaker_encoder.*` of its file), whose names the modules here bear; the others as `campplus.onnx`,
in which the norms are folded into their neighbours: that file is run by onnxruntime.

Source: modelscope/3D-Speaker, `speakerlab/models/campplus` (Apache-2.0); Wang et al. 2023, CAM++.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from models.audio.kaldi import HOP, WINDOW, kaldi_fbank
from models.audio.onnx_weights import ADVICE
from models.checkpoint import REMEDY, size_of
from models.errors import WeightError
from models.weights import load_weights

RATE_HZ: Final = 16_000
N_MELS: Final = 80
SHRINK: Final = 8
"""Bands that become one row of the ResNet's last layer."""
DILATIONS: Final = (1, 2, 2)
"""Of the three dense blocks. Kernels are told by the shapes of their weights."""
SEGMENT: Final = 100
"""Rows of the neighbourhood whose mean a layer hears, after the first stride."""
LEAST_SAMPLES: Final = WINDOW + 4 * HOP
"""Shorter recordings are filled up with silence: a deviation needs a few rows."""
COUNTER: Final = "num_batches_tracked"
"""Of training alone; some files lack it."""


class SpeakerEmbedder(Protocol):
    """Maps a recording to the vector of its voice."""

    def embed(self, pcm: Tensor) -> Tensor:
        """The vector `(size,)` float32, on the CPU, of PCM `(n,)` at 16 kHz, n > 0."""
        ...


class CamPlus(nn.Module):
    """CAM++ of tensors.

    Args:
        tensors: by the keys of 3D-Speaker; all sizes follow from their shapes.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, source: str) -> None:
        super().__init__()
        shapes = _Shapes(tensors, source)
        n_filters = shapes.size("head.conv1.weight", 0)
        self.head = _Head(n_filters)
        n_in = n_filters * (N_MELS // SHRINK)
        size = shapes.size("xvector.tdnn.linear.weight", 0)
        parts: dict[str, nn.Module] = {
            "tdnn": _Joined(n_in, size, shapes.size("xvector.tdnn.linear.weight", 2), stride=2)
        }
        for idx, dilation in enumerate(DILATIONS):
            block = _DenseBlock(size, dilation, shapes, f"xvector.block{idx + 1}.")
            size = block.n_out
            parts[f"block{idx + 1}"] = block
            parts[f"transit{idx + 1}"] = _Transit(size, size // 2)
            size //= 2
        parts["out_nonlinear"] = _Normed(size)
        parts["dense"] = _Dense(2 * size, shapes.size("xvector.dense.linear.weight", 0))
        self.xvector = nn.ModuleDict(parts)
        own = self.state_dict()
        counters = {key: own[key] for key in own if key.endswith(COUNTER)}
        load_weights(self, counters | dict(tensors), source=source)
        self.requires_grad_(False).eval()

    def embed(self, pcm: Tensor) -> Tensor:
        """See `SpeakerEmbedder`."""
        weight = self.head.conv1.weight
        vector: Tensor = self(_features(pcm.to(weight.device)).to(weight.dtype).unsqueeze(0))
        return vector[0].float().cpu()

    def forward(self, features: Tensor) -> Tensor:
        """Vectors `(B, size)` of features `(B, T, n_mels)`, all of the same length."""
        x = self.head(features.transpose(1, 2))
        for name, part in self.xvector.items():
            if name == "dense":
                x = torch.cat([x.mean(dim=2), x.std(dim=2)], dim=1).unsqueeze(2)
            x = part(x)
        vectors: Tensor = x[:, :, 0]
        return vectors


class OnnxCamPlus:
    """CAM++ of `campplus.onnx`, on the CPU.

    Args:
        path: of the file.

    Raises:
        WeightError: the file is missing or damaged, or onnxruntime is not installed.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise WeightError(f"{path} is missing; {REMEDY}")
        try:
            import onnxruntime
        except ImportError:
            raise WeightError(f"{path} needs the package onnxruntime: {ADVICE}") from None
        options = onnxruntime.SessionOptions()
        # A worker thread runs it beside the engine's: threads of its own would be in the way.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            self._input = self._session.get_inputs()[0].name
        # What it raises has no common kind, and bytes that are wrong can raise anything.
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise WeightError(f"{path} is damaged or cut short ({reason}); {REMEDY}") from error

    def embed(self, pcm: Tensor) -> Tensor:
        """See `SpeakerEmbedder`."""
        features = _features(pcm.cpu()).unsqueeze(0).numpy()
        (vector,) = self._session.run(None, {self._input: features})
        return torch.from_numpy(np.asarray(vector, dtype=np.float32).reshape(-1))


def _features(pcm: Tensor) -> Tensor:
    """`(T, n_mels)`, each band around 0."""
    filled = nn.functional.pad(pcm.float(), (0, max(0, LEAST_SAMPLES - len(pcm))))
    bands = kaldi_fbank(filled, N_MELS)
    return bands - bands.mean(dim=0, keepdim=True)


class _Shapes:
    """Sizes of a file's tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], source: str) -> None:
        self._tensors = tensors
        self._source = source

    def size(self, key: str, axis: int) -> int:
        kind = "speaker encoder (CAM++)"
        return size_of(self._tensors, key, axis, source=self._source, kind=kind)

    def n_layers(self, stem: str) -> int:
        return len({key.split(".")[2] for key in self._tensors if key.startswith(stem)})


class _Head(nn.Module):
    """Three halvings of the bands; time stays."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv2d(1, n), nn.BatchNorm2d(n)
        self.layer1 = nn.Sequential(_Residual(n, 2), _Residual(n, 1))
        self.layer2 = nn.Sequential(_Residual(n, 2), _Residual(n, 1))
        self.conv2, self.bn2 = _conv2d(n, n, 2), nn.BatchNorm2d(n)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, n_mels, T)` to `(B, n * n_mels / 8, T)`."""
        x = self.bn1(self.conv1(x.unsqueeze(1))).relu()
        x = self.bn2(self.conv2(self.layer2(self.layer1(x)))).relu()
        return x.flatten(1, 2)


class _Residual(nn.Module):
    def __init__(self, n: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv2d(n, n, stride), nn.BatchNorm2d(n)
        self.conv2, self.bn2 = _conv2d(n, n), nn.BatchNorm2d(n)
        down = nn.Conv2d(n, n, 1, stride=(stride, 1), bias=False)
        self.shortcut = nn.Sequential(*([] if stride == 1 else [down, nn.BatchNorm2d(n)]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = y + self.shortcut(x)
        return out.relu()


class _Joined(nn.Module):
    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.nonlinear = _Normed(n_out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nonlinear(self.linear(x))
        return out


class _DenseBlock(nn.ModuleDict):
    """Layers that hear what came in and what all layers before them gave."""

    def __init__(self, n_in: int, dilation: int, shapes: _Shapes, stem: str) -> None:
        super().__init__()
        n_layers = shapes.n_layers(stem)
        n_squeezed = shapes.size(f"{stem}tdnnd1.linear1.weight", 0)
        n_grown = shapes.size(f"{stem}tdnnd1.cam_layer.linear_local.weight", 0)
        kernel = shapes.size(f"{stem}tdnnd1.cam_layer.linear_local.weight", 2)
        for idx in range(n_layers):
            layer = _DenseLayer(n_in + idx * n_grown, n_squeezed, n_grown, kernel, dilation)
            self[f"tdnnd{idx + 1}"] = layer
        self.n_out = n_in + n_layers * n_grown

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = torch.cat([x, layer(x)], dim=1)
        return x


class _DenseLayer(nn.Module):
    def __init__(self, n_in: int, n_squeezed: int, n_out: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = _Normed(n_in)
        self.linear1 = nn.Conv1d(n_in, n_squeezed, 1, bias=False)
        self.nonlinear2 = _Normed(n_squeezed)
        self.cam_layer = _ContextMask(n_squeezed, n_out, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))
        return out


class _ContextMask(nn.Module):
    """A convolution, weighed by what the whole and the neighbourhood sound like."""

    def __init__(self, n_in: int, n_out: int, kernel: int, dilation: int) -> None:
        super().__init__()
        padding = kernel // 2 * dilation
        self.linear_local = nn.Conv1d(
            n_in, n_out, kernel, padding=padding, dilation=dilation, bias=False
        )
        self.linear1 = nn.Conv1d(n_in, n_in // 2, 1)
        self.linear2 = nn.Conv1d(n_in // 2, n_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        # The last neighbourhood is the mean of what there is of it.
        near = nn.functional.avg_pool1d(x, SEGMENT, SEGMENT, ceil_mode=True)
        context = x.mean(dim=2, keepdim=True) + near
        weights = self.linear2(self.linear1(context).relu()).sigmoid()
        out: Tensor = self.linear_local(x)
        spread: Tensor = weights.repeat_interleave(SEGMENT, dim=2)[:, :, : x.shape[2]]
        return out * spread


class _Transit(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.nonlinear = _Normed(n_in)
        self.linear = nn.Conv1d(n_in, n_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.nonlinear(x))
        return out


class _Dense(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(n_in, n_out, 1, bias=False)
        self.nonlinear = nn.ModuleDict({"batchnorm": nn.BatchNorm1d(n_out, affine=False)})

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nonlinear["batchnorm"](self.linear(x))
        return out


class _Normed(nn.Module):
    """A norm and a ReLU."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.batchnorm = nn.BatchNorm1d(n)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.batchnorm(x)
        return out.relu_()


def _conv2d(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 3, stride=(stride, 1), padding=1, bias=False)

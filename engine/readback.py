"""The one transfer of a step from the device to the host. Called from `EngineLoop._collect` only.

Row results, chunk marks and PCM are joined into a single buffer of 32-bit words on the device, so
that the host waits once, whatever the step held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.launch import PendingStep

Pcm = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAudio:
    """Host side of a detokenizer call: `pcm` (B, S), and by stream its samples and soundness."""

    pcm: Pcm
    n_samples: list[int]
    is_finite: list[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResults:
    """Host side of a step: `rows` are the row results of each launch, `chunks` of each call."""

    rows: list[list[list[int]]]
    chunks: list[ChunkAudio]


def read_back(pending: PendingStep) -> HostResults:
    """Wait for a launched step and bring its results to the host."""
    parts: list[Tensor] = [launch.results for launch in pending.rows]
    for launch in pending.chunks:
        audio = launch.audio
        parts += [audio.n_samples.to(torch.int32), audio.is_finite.to(torch.int32)]
        parts.append(audio.pcm.contiguous().view(torch.int32))
    if not parts:
        return HostResults(rows=[], chunks=[])
    words = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    shaped, first = [], 0
    for part in parts:
        shaped.append(words[first : first + part.numel()].reshape(part.shape))
        first += part.numel()
    n_rows = len(pending.rows)
    marks = shaped[n_rows:]
    return HostResults(
        rows=[block.tolist() for block in shaped[:n_rows]],
        chunks=[
            ChunkAudio(
                pcm=pcm.view(np.float32),
                n_samples=n_samples.tolist(),
                is_finite=is_finite.astype(bool).tolist(),
            )
            for n_samples, is_finite, pcm in zip(marks[0::3], marks[1::3], marks[2::3], strict=True)
        ],
    )

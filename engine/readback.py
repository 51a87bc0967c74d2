"""The one transfer of a step from the device to the host.

Row results, chunk marks and PCM are joined into a single buffer of 32-bit words on the device, so
that a step has one copy, whatever it held (two where the detokenizer has a device of its own). The
copy begins with the launch and runs beside what is launched next; the host waits for it where the
results are collected. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device_streams import DeviceStream, DeviceStreams
from engine.launch import PendingStep

Pcm = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]


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


class Transfer:
    """Tensors on their way to the host, as 32-bit words.

    Args:
        parts: float32, whole numbers or marks; they are kept until the copy has been made.
        stream: where they are joined and copied.
        makers: the streams that make them.
    """

    def __init__(
        self, parts: Sequence[Tensor], stream: DeviceStream, makers: Sequence[DeviceStream]
    ) -> None:
        self._parts = parts
        for maker in makers:
            stream.wait(maker.mark())
        self._words: Tensor | None = None
        if parts:
            with stream.queue():
                joined = torch.cat([_words(part) for part in parts])
                self._words = stream.to_host(joined)
        self._mark = stream.mark()

    def arrays(self) -> Iterator[Words]:
        """The tensors on the host, in order; waits for them, and for all that was before them."""
        self._mark.wait()
        if self._words is None:
            return
        words, first = self._words.numpy(), 0
        for part in self._parts:
            yield words[first : first + part.numel()].reshape(part.shape)
            first += part.numel()


def send_back(pending: PendingStep, streams: DeviceStreams) -> list[Transfer]:
    """Begin to bring a launched step's results to the host; waits for nothing."""
    rows = [launch.results for launch in pending.rows]
    chunks: list[Tensor] = []
    for launch in pending.chunks:
        audio = launch.audio
        chunks += [audio.n_samples, audio.is_finite, audio.pcm]
    if streams.codec_copy is streams.copy:
        makers = [streams.lm] if not chunks else [streams.lm, streams.codec]
        return [Transfer(rows + chunks, streams.copy, makers)]
    return [
        Transfer(rows, streams.copy, [streams.lm]),
        Transfer(chunks, streams.codec_copy, [streams.codec]),
    ]


def read_back(pending: PendingStep, transfers: Sequence[Transfer]) -> HostResults:
    """Wait for a launched step and give its results."""
    arrays = [array for transfer in transfers for array in transfer.arrays()]
    n_rows = len(pending.rows)
    marks = arrays[n_rows:]
    return HostResults(
        rows=[block.tolist() for block in arrays[:n_rows]],
        chunks=[
            ChunkAudio(
                pcm=pcm.view(np.float32),
                n_samples=n_samples.tolist(),
                is_finite=is_finite.astype(bool).tolist(),
            )
            for n_samples, is_finite, pcm in zip(marks[0::3], marks[1::3], marks[2::3], strict=True)
        ],
    )


def _words(part: Tensor) -> Tensor:
    """The bits of float32, the values of whole numbers and marks; flat, int32."""
    is_bits = part.dtype == torch.float32
    return part.contiguous().view(torch.int32).flatten() if is_bits else part.int().flatten()

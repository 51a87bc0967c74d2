"""Has the speaker finished, or is it a pause for thought? The smart-turn model, where installed.

The weights come with the package `pipecat-ai`, of which nothing else is used; it is not imported.
Without it (or without `onnxruntime`) there is no judge, and silence alone ends a turn. The network
runs once a pause, in a thread of its own: coding and voice activity need not wait for it.

Source: smart-turn v3.2 (BSD-2, as packaged); its input are the log-mel features of Whisper
(https://arxiv.org/abs/2212.04356, section 2.2) over the last 8 s, here written anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import logging
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.types import Pcm
from realtime.agent.base import HEARD_RATE_HZ
from realtime.errors import GatewayError
from realtime.workers import Workers

logger = logging.getLogger(__name__)

WEIGHTS: Final = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
WEIGHTS_SHA256: Final = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"
WINDOW_S: Final = 8
N_FFT: Final = 400
HOP: Final = 160
N_MELS: Final = 80
POWER_FLOOR: Final = 1e-10
VARIANCE_FLOOR: Final = 1e-7
RANGE_DECADES: Final = 8.0
"""Log power below the loudest by more than this is raised to it."""
SLANEY_BREAK_HZ: Final = 1000.0
SLANEY_BREAK_MEL: Final = 15.0
SLANEY_STEP: Final = np.log(6.4) / 27.0
"""The Slaney mel scale: linear up to the break (200/3 Hz a mel), then logarithmic."""

Array = npt.NDArray[np.float64]


class EndOfTurnMissingError(GatewayError):
    """The end-of-turn model cannot be loaded; the message says why."""


class SmartTurn:
    """Implements `realtime.agent.base.EndOfTurnJudge`.

    Args:
        path: of the weights.

    Raises:
        EndOfTurnMissingError: no runtime, no file, or another one than was tested.
    """

    name = "smart-turn v3.2"
    licence = "BSD-2-Clause"

    def __init__(self, path: Path) -> None:
        self._session = _open_session(path)
        self._workers = Workers(1)

    async def completeness(self, pcm: Pcm) -> float:
        """How likely the speaker of float32 `(n,)` at 16 kHz has finished, 0 to 1."""
        return await self._workers.run(self._judge, pcm)

    async def close(self) -> None:
        """Judge nothing any more, and wait for the verdict at hand."""
        await asyncio.to_thread(self._workers.close)

    def _judge(self, pcm: Pcm) -> float:
        features = log_mel(last_window(pcm))[None]
        # The output is called logits, and is a probability.
        (probability,) = self._session.run(None, {"input_features": features})
        return float(probability.reshape(-1)[0])


def load_judge() -> SmartTurn | None:
    """The model, where it is installed; else None, and the reason in the log. Blocking."""
    try:
        return SmartTurn(weights_path())
    except EndOfTurnMissingError as error:
        logger.info("silence alone ends a turn: %s", error)
        return None


def weights_path() -> Path:
    """Where the installed package keeps its weights. Raises: `EndOfTurnMissingError`."""
    found = importlib.util.find_spec("pipecat")
    if found is None or found.origin is None:
        raise EndOfTurnMissingError("pipecat-ai is not installed")
    return Path(found.origin).parent / WEIGHTS


def last_window(pcm: Pcm) -> Pcm:
    """The last 8 s, `(WINDOW_S * HEARD_RATE_HZ,)`; zeros come before shorter audio."""
    n_samples = WINDOW_S * HEARD_RATE_HZ
    pcm = pcm[-n_samples:]
    return np.pad(pcm, (n_samples - len(pcm), 0))


def log_mel(pcm: Pcm) -> npt.NDArray[np.float32]:
    """Features `(N_MELS, n_samples / HOP)` of samples scaled to mean 0 and variance 1."""
    scaled = (pcm - pcm.mean()) / np.sqrt(pcm.var() + VARIANCE_FLOOR)
    padded = np.pad(scaled.astype(np.float64), N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:-1]
    power = np.abs(np.fft.rfft(frames * np.hanning(N_FFT + 1)[:-1])) ** 2
    log_power = np.log10(np.maximum(POWER_FLOOR, _mel_filters() @ power.T))
    raised = np.maximum(log_power, log_power.max() - RANGE_DECADES)
    features: npt.NDArray[np.float32] = ((raised + 4.0) / 4.0).astype(np.float32)
    return features


@cache
def _mel_filters() -> Array:
    """Triangles of equal area over the mel scale, `(N_MELS, N_FFT // 2 + 1)`."""
    bins_hz = np.linspace(0, HEARD_RATE_HZ / 2, N_FFT // 2 + 1)
    edges_hz = _hz_of(np.linspace(0, _mel_of(HEARD_RATE_HZ / 2), N_MELS + 2))
    low, middle, high = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising, falling = (bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle)
    triangles: Array = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return triangles


def _mel_of(hz: float) -> float:
    assert hz > SLANEY_BREAK_HZ, "only the top of the range is asked for"
    return float(SLANEY_BREAK_MEL + np.log(hz / SLANEY_BREAK_HZ) / SLANEY_STEP)


def _hz_of(mels: Array) -> Array:
    linear = mels * SLANEY_BREAK_HZ / SLANEY_BREAK_MEL
    curved = SLANEY_BREAK_HZ * np.exp(SLANEY_STEP * (mels - SLANEY_BREAK_MEL))
    return np.where(mels < SLANEY_BREAK_MEL, linear, curved)


def _open_session(path: Path) -> Any:  # noqa: ANN401 - of an optional package without types
    try:
        weights = path.read_bytes()
        runtime = importlib.import_module("onnxruntime")
    except (OSError, ImportError) as error:
        raise EndOfTurnMissingError(str(error)) from None
    digest = hashlib.sha256(weights).hexdigest()
    if digest != WEIGHTS_SHA256:
        message = f"{path.name} has the SHA-256 {digest}, expected {WEIGHTS_SHA256}"
        raise EndOfTurnMissingError(message)
    options = runtime.SessionOptions()
    # One worker thread is one thread: spinning helpers would take the engine's core.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])

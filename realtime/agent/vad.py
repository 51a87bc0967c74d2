"""Voice activity by Silero VAD: its published weights in plain torch, batched over sessions.

Where the network is unsure, held tones are no voice (`realtime.agent.tones`): of 64 minutes of
struck chords it takes ten for the start of speech.

The network runs in the gateway's worker threads: while one batch runs, the frames of all sessions
gather for the next, so that many sessions cost few calls. The weights come with the package
`silero-vad` and are checked before use.

Source: the 16 kHz network of silero-vad 6.2.3, `silero_vad.jit` (MIT); `tests/realtime/agent/
test_vad.py` holds this module against it.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.types import Pcm
from realtime.agent.base import FRAME_SAMPLES
from realtime.agent.tones import TONE_SAMPLES, is_held_tone
from realtime.errors import GatewayError
from realtime.workers import Workers

logger = logging.getLogger(__name__)

WEIGHTS_SHA256: Final = "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720"
CONTEXT_SAMPLES: Final = 64
"""The network sees the end of the frame before."""
N_HIDDEN: Final = 128
N_BINS: Final = 129
STFT_HOP: Final = 128
STRIDES: Final = (1, 2, 2, 1)
MAX_BATCH_FRAMES: Final = 64
"""Of one call, so that a session that sends much does not make the others wait."""
SILENCE_LEVEL: Final = 0.001
"""Root mean square under which a frame is silence: -60 dB of full scale."""
RENEW_FRAMES: Final = 32
"""1 s of silence. Music dulls the recurrent state: after a minute of chords pico's voice was heard
64 ms later, and at 0.5 to 0.9 instead of 1.0 (November 2026). Only silence is a safe place to start
anew: a fresh state takes the middle of a chord for a voice.
"""
UNSURE: Final = 0.3
SURE: Final = 0.9
"""Between these a frame may be music. Over it is a voice, whatever it sings; under it is none."""


class VadMissingError(GatewayError):
    """The voice activity weights are not there, or not the ones they should be."""


def weights_path() -> Path:
    """Where the installed package keeps its weights. Raises: `VadMissingError`."""
    # The package itself is not imported: it would bring its own thread settings along.
    found = importlib.util.find_spec("silero_vad")
    if found is None or found.origin is None:
        raise VadMissingError("no voice activity weights: pip install silero-vad==6.2.3")
    return Path(found.origin).parent / "data" / "silero_vad.jit"


def load_weights(path: Path) -> dict[str, Tensor]:
    """The 16 kHz network's tensors by name, float32.

    Raises:
        VadMissingError: no file, or another one than was tested.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise VadMissingError(f"voice activity weights: {error}") from None
    if digest != WEIGHTS_SHA256:
        message = f"{path.name} has the SHA-256 {digest}, expected {WEIGHTS_SHA256}"
        raise VadMissingError(f"{message}: pip install silero-vad==6.2.3")
    prefix = "_model."
    with warnings.catch_warnings():
        # Deprecated, but the package has these weights in no other form that torch can read.
        warnings.simplefilter("ignore", DeprecationWarning)
        network = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    state: dict[str, Tensor] = network.state_dict()
    return {
        name.removeprefix(prefix): tensor.detach().clone()
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


class VadState:
    """What the network remembers of one stream: the last samples, and its recurrent state."""

    def __init__(self) -> None:
        self.context: Pcm = np.zeros(CONTEXT_SAMPLES, dtype=np.float32)
        self.hidden = torch.zeros(N_HIDDEN)
        self.cell = torch.zeros(N_HIDDEN)

    def renew(self) -> None:
        """Forget what was heard long ago."""
        self.hidden = torch.zeros(N_HIDDEN)
        self.cell = torch.zeros(N_HIDDEN)


class SileroVad:
    """The network. Any thread, one call at a time for each stream.

    Args:
        weights: as `load_weights` gives them.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._basis = weights["stft.forward_basis_buffer"]
        self._convolutions = [
            (weights[f"encoder.{n}.reparam_conv.weight"], weights[f"encoder.{n}.reparam_conv.bias"])
            for n in range(len(STRIDES))
        ]
        self._rnn = torch.nn.LSTMCell(N_HIDDEN, N_HIDDEN)
        with torch.no_grad():
            for name, parameter in self._rnn.named_parameters():
                parameter.copy_(weights[f"decoder.rnn.{name}"])
        self._head = weights["decoder.decoder.2.weight"][0, :, 0]
        self._bias = weights["decoder.decoder.2.bias"]

    @torch.inference_mode()
    def probabilities(
        self, states: Sequence[VadState], audio: Sequence[Pcm]
    ) -> list[Sequence[float]]:
        """Speech probability of each frame, and move the states on.

        Args:
            states: of B streams, all different.
            audio: of each stream, float32 `(n_frames * FRAME_SAMPLES,)`, n_frames >= 1.
        """
        windows = [_windows(state, pcm) for state, pcm in zip(states, audio, strict=True)]
        n_frames = [len(one) for one in windows]
        features = self._encode(torch.from_numpy(np.concatenate(windows)))
        padded = torch.nn.utils.rnn.pad_sequence(list(torch.split(features, n_frames)))
        hidden = torch.stack([state.hidden for state in states])
        cell = torch.stack([state.cell for state in states])
        counts = torch.tensor(n_frames)
        logits = torch.empty(padded.shape[:2])
        for idx in range(max(n_frames)):
            rows = (counts > idx).nonzero()[:, 0]
            hidden[rows], cell[rows] = self._rnn(padded[idx, rows], (hidden[rows], cell[rows]))
            logits[idx] = hidden.relu() @ self._head + self._bias
        for row, state in enumerate(states):
            state.hidden, state.cell = hidden[row].clone(), cell[row].clone()
        heard: list[list[float]] = logits.sigmoid().T.tolist()
        return [heard[row][:n] for row, n in enumerate(n_frames)]

    def _encode(self, windows: Tensor) -> Tensor:
        """Windows `(N, CONTEXT_SAMPLES + FRAME_SAMPLES)` to features `(N, N_HIDDEN)`."""
        padded = functional.pad(windows.unsqueeze(1), (0, CONTEXT_SAMPLES), mode="reflect")
        spectrum = functional.conv1d(padded, self._basis, stride=STFT_HOP)
        x = (spectrum[:, :N_BINS].square() + spectrum[:, N_BINS:].square()).sqrt()
        for (weight, bias), stride in zip(self._convolutions, STRIDES, strict=True):
            x = functional.conv1d(x, weight, bias, stride=stride, padding=1).relu()
        return x[:, :, 0]


class SileroDetector:
    """Implements `realtime.agent.base.VoiceDetector`. Event loop only; the network in `workers`.

    Args:
        vad: the network.
        workers: where it runs.
    """

    def __init__(self, vad: SileroVad, workers: Workers) -> None:
        self._vad = vad
        self._workers = workers
        self._waiting: list[tuple[VadState, Pcm, asyncio.Future[Sequence[float]]]] = []
        self._running: asyncio.Task[None] | None = None

    def open_track(self) -> SileroTrack:
        """Start on a new stream of audio."""
        return SileroTrack(self)

    async def run(self, state: VadState, pcm: Pcm) -> Sequence[float]:
        """Probabilities of whole frames, together with those of other sessions."""
        future: asyncio.Future[Sequence[float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, pcm, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run_all(), name="voice activity")
        return await future

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._run_batch(batch)
        finally:
            self._running = None

    async def _run_batch(
        self, batch: list[tuple[VadState, Pcm, asyncio.Future[Sequence[float]]]]
    ) -> None:
        states, audio, futures = zip(*batch, strict=True)
        try:
            heard = await self._workers.run(self._vad.probabilities, states, audio)
        # A fault is the callers' to handle: each of them is told.
        except Exception as error:
            logger.exception("voice activity failed")
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, one in zip(futures, heard, strict=True):
            if not future.done():
                future.set_result(one)


class SileroTrack:
    """Voice activity of one session."""

    def __init__(self, detector: SileroDetector) -> None:
        self._detector = detector
        self._state = VadState()
        self._n_silent = 0
        self._recent: Pcm = np.zeros(TONE_SAMPLES - FRAME_SAMPLES, dtype=np.float32)

    async def probabilities(self, pcm: Pcm) -> Sequence[float]:
        """Probability of each frame of float32 `(n_frames * FRAME_SAMPLES,)`."""
        assert len(pcm) % FRAME_SAMPLES == 0, "the caller cuts whole frames"
        heard: list[float] = []
        start = 0
        for end, is_renewal in self._borders(pcm):
            samples = pcm[start * FRAME_SAMPLES : end * FRAME_SAMPLES]
            heard += await self._detector.run(self._state, samples)
            start = end
            if is_renewal:
                self._state.renew()
        return self._without_tones(heard, pcm)

    def _without_tones(self, heard: Sequence[float], pcm: Pcm) -> list[float]:
        """Probabilities, 0 where the frame is part of a held tone."""
        line = np.concatenate([self._recent, pcm])
        self._recent = line[len(line) - len(self._recent) :]
        windows = np.lib.stride_tricks.sliding_window_view(line, TONE_SAMPLES)[::FRAME_SAMPLES]
        return [
            0.0 if UNSURE <= one < SURE and is_held_tone(window) else one
            for one, window in zip(heard, windows, strict=True)
        ]

    def _borders(self, pcm: Pcm) -> Iterator[tuple[int, bool]]:
        """Ends of the calls, in frames, and whether the state is renewed after each."""
        is_silent = np.square(pcm.reshape(-1, FRAME_SAMPLES)).mean(axis=1) < SILENCE_LEVEL**2
        start = 0
        for frame, silent in enumerate(is_silent.tolist(), start=1):
            self._n_silent = self._n_silent + 1 if silent else 0
            is_renewal = self._n_silent == RENEW_FRAMES
            if is_renewal or frame - start == MAX_BATCH_FRAMES or frame == len(is_silent):
                start = frame
                yield frame, is_renewal


def load_vad() -> SileroVad:
    """The network with the installed package's weights. Blocking. Raises: `VadMissingError`."""
    return SileroVad(load_weights(weights_path()))


def _windows(state: VadState, pcm: Pcm) -> Pcm:
    """Frames with the context before each `(n_frames, CONTEXT_SAMPLES + FRAME_SAMPLES)`."""
    line = np.concatenate([state.context, pcm])
    state.context = line[-CONTEXT_SAMPLES:]
    windows = np.lib.stride_tricks.sliding_window_view(line, CONTEXT_SAMPLES + FRAME_SAMPLES)
    frames: Pcm = windows[::FRAME_SAMPLES]
    return frames

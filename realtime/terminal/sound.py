"""Plays PCM on this machine's sound device, where there is one. Blocking: never on the event loop.

First `sounddevice` (the `voice` extra), then the players that Linux desktops carry. Nothing is
required: `open_player` says why there is no sound.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.float32]
_PROBE_TIMEOUT_S = 5.0


class NoSoundError(Exception):
    """This machine cannot play. The message is one line."""


class Player(Protocol):
    """A sound device that has been opened at one sample rate."""

    def __enter__(self) -> Self:
        """Start."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Play what was written to its end; after an error, stop at once."""
        ...

    def write(self, pcm: Pcm) -> None:
        """Play mono samples `(n,)` after those before; blocks while the device is full."""
        ...


def open_player(sample_rate_hz: int) -> Player:
    """The first way to make sound that works here.

    Raises:
        NoSoundError: there is none.
    """
    device = _sounddevice()
    if device is not None:
        return _DevicePlayer(device, sample_rate_hz)
    for program in _PROGRAMS:
        if program.works():
            return _ProgramPlayer(program.play_command(sample_rate_hz))
    raise NoSoundError("no sound device here; write a file instead with: -o speech.wav")


def describe() -> str:
    """What `open_player` would take. Raises: `NoSoundError`."""
    if _sounddevice() is not None:
        return "sounddevice"
    for program in _PROGRAMS:
        if program.works():
            return program.name
    raise NoSoundError("no sound device; `parley say` can still write files")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A program that plays raw 16-bit mono from its standard input.

    Args:
        name: of the program.
        probe: command that fails where there is no device or sound server.
        play: command; `{rate}` becomes the sample rate.
    """

    name: str
    probe: tuple[str, ...]
    play: tuple[str, ...]

    def works(self) -> bool:
        """Whether it is installed and has something to play on."""
        if shutil.which(self.name) is None or shutil.which(self.probe[0]) is None:
            return False
        try:
            probed = subprocess.run(
                self.probe, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return probed.returncode == 0

    def play_command(self, sample_rate_hz: int) -> list[str]:
        """Its command line."""
        return [part.format(rate=sample_rate_hz) for part in self.play]


_PROGRAMS = (
    _Program(
        name="paplay",
        probe=("pactl", "info"),
        play=("paplay", "--raw", "--format=s16le", "--rate={rate}", "--channels=1"),
    ),
    _Program(
        name="aplay",
        probe=("aplay", "-l"),
        play=("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", "{rate}", "-c", "1", "-"),
    ),
)


class _ProgramPlayer:
    """Plays through a program's standard input."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None, "entered before"
        if kind is not None:
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def write(self, pcm: Pcm) -> None:
        assert self._process is not None, "entered before"
        assert self._process.stdin is not None, "opened with a pipe"
        try:
            self._process.stdin.write(_pcm16(pcm).tobytes())
        except BrokenPipeError as error:
            raise NoSoundError(f"{self._command[0]} stopped playing") from error


class _DevicePlayer:
    """Plays through the `sounddevice` package."""

    def __init__(self, device: Any, sample_rate_hz: int) -> None:  # noqa: ANN401 - optional package
        self._stream = device.OutputStream(samplerate=sample_rate_hz, channels=1, dtype="int16")

    def __enter__(self) -> Self:
        self._stream.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._stream.stop()
        else:
            self._stream.abort()
        self._stream.close()

    def write(self, pcm: Pcm) -> None:
        self._stream.write(_pcm16(pcm)[:, None])


def _sounddevice() -> Any | None:  # noqa: ANN401 - optional package
    """The `sounddevice` module, if it is installed and finds an output."""
    try:
        device = importlib.import_module("sounddevice")
        device.query_devices(kind="output")
    except (ImportError, OSError, ValueError, RuntimeError):
        return None
    except Exception as error:  # PortAudioError, which only that package can name
        if type(error).__name__ != "PortAudioError":
            raise
        return None
    return device


def _pcm16(pcm: Pcm) -> npt.NDArray[np.int16]:
    return np.round(np.clip(pcm, -1.0, 1.0) * 32767.0).astype("<i2")

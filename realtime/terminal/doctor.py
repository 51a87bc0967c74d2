"""Looks at this machine and says what Parley would lack, and what to do. Blocking; no torch here.

Each check is a function that gives one `Finding`. torch is asked in a process of its own, so that a
broken install is a finding and not a crash.
"""

from __future__ import annotations

import errno
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import av.codec
import numpy as np

from realtime.audio.opus import OpusDecoder, OpusEncoder, load_library
from realtime.errors import OpusMissingError
from realtime.terminal import sound
from realtime.terminal.sound import NoSoundError

Mark = Literal["ok", "note", "fault"]
_RATE_HZ = 24_000
_TORCH_TIMEOUT_S = 120.0
_TORCH_QUESTION = """
import torch
print(torch.__version__)
print(torch.get_num_threads())
print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else "")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check saw.

    Args:
        name: of the thing looked at.
        mark: `ok`, `note` (works, but less well) or `fault` (something does not work).
        seen: what is there.
        advice: what to do, for a note or a fault.
    """

    name: str
    mark: Mark
    seen: str
    advice: str = ""


def examine(
    *,
    host: str,
    port: int,
    models: Iterable[tuple[str, Callable[[], str]]],
    hearing: Callable[[], str],
) -> Iterator[Finding]:
    """Every check, in the order in which a start would need it.

    Args:
        host: where `parley serve` would listen.
        port: the same.
        models: name of each model, and a call that loads its weights and gives a word on them; it
            raises an exception whose text says what to do.
        hearing: loads what a conversation needs besides, in the same way.
    """
    yield check_python()
    yield check_opus()
    yield check_audio_files()
    yield from check_torch()
    for name, load in models:
        yield check_weights(name, load)
    yield check_hearing(hearing)
    yield check_port(host, port)
    yield check_sound()


def check_python() -> Finding:
    """The interpreter (one that is too old would not have come this far)."""
    return Finding(name="Python", mark="ok", seen=sys.version.split()[0])


def check_opus() -> Finding:
    """Encodes and decodes one packet of a tone."""
    try:
        library = load_library().__name__
    except OpusMissingError as error:
        return Finding(name="Opus", mark="fault", seen="no library", advice=str(error))
    encoder = OpusEncoder(sample_rate_hz=_RATE_HZ, bitrate_bps=32_000, complexity=5)
    decoder = OpusDecoder(sample_rate_hz=_RATE_HZ)
    tone = np.sin(np.arange(3 * encoder.packet_samples) * 0.1).astype(np.float32)
    blocks = [decoder.decode(encoder.encode(part)) for part in np.split(tone, 3)]
    if float(np.abs(np.concatenate(blocks)).max()) > 0.5:
        return Finding(name="Opus", mark="ok", seen=f"{library}, encodes and decodes")
    return Finding(
        name="Opus",
        mark="fault",
        seen=f"{library} gives no sound",
        advice="reinstall it: pip install --force-reinstall opuslib-next-bundled",
    )


def check_audio_files() -> Finding:
    """What `say -o` writes with."""
    missing = [name for name in ("libopus", "flac") if name not in av.codec.codecs_available]
    if not missing:
        return Finding(name="Audio files", mark="ok", seen=f"PyAV {av.__version__}")
    return Finding(
        name="Audio files",
        mark="note",
        seen=f"PyAV {av.__version__} without {', '.join(missing)}",
        advice="write .wav, or install PyAV's own wheel: pip install --force-reinstall av",
    )


def check_torch() -> Iterator[Finding]:
    """torch, and whether it sees a GPU."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _TORCH_QUESTION],
            capture_output=True,
            text=True,
            timeout=_TORCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            name="torch",
            mark="fault",
            seen=f"did not load in {_TORCH_TIMEOUT_S:.0f} s",
            advice="see what else this machine is doing, then try again",
        )
        return
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield Finding(name="torch", mark="fault", seen=reason, advice="install it: make serve")
        return
    version, n_threads, device = (*answer.stdout.splitlines(), "", "", "")[:3]
    yield Finding(name="torch", mark="ok", seen=f"{version}, {n_threads} threads")
    yield _cuda(version, device)


def _cuda(version: str, device: str) -> Finding:
    if device:
        return Finding(name="CUDA", mark="ok", seen=device)
    if shutil.which("nvidia-smi") is None:
        return Finding(name="CUDA", mark="ok", seen="no GPU: models run on the CPU")
    return Finding(
        name="CUDA",
        mark="note",
        seen=f"a GPU is here, but torch {version} does not see it",
        advice="install a CUDA build of torch in .venv; until then models run on the CPU",
    )


def check_weights(name: str, load: Callable[[], str]) -> Finding:
    """A model's weights, loaded as `serve` would load them."""
    try:
        return Finding(name=f"Model {name}", mark="ok", seen=load())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's finding
        message = str(error) or type(error).__name__
        return Finding(name=f"Model {name}", mark="fault", seen="cannot load", advice=message)


def check_hearing(load: Callable[[], str]) -> Finding:
    """Speech to text and what finds the end of a turn; a server without them only speaks."""
    try:
        return Finding(name="Conversation", mark="ok", seen=load())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's finding
        message = str(error) or type(error).__name__
        return Finding(name="Conversation", mark="note", seen="speaks only", advice=message)


def check_port(host: str, port: int) -> Finding:
    """Whether `serve` could listen."""
    name = f"Port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(
                name=name,
                mark="note",
                seen=f"cannot listen on {host}: {error.strerror}",
                advice=_port_advice(error, port),
            )
    return Finding(name=name, mark="ok", seen=f"free on {host}")


def _port_advice(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"a server may be running; stop it, or: parley serve --port {port + 1}"
    if error.errno == errno.EACCES:
        return "take a port above 1023: parley serve --port 8765"
    return "give --host an address of this machine; 0.0.0.0 is all of them"


def check_sound() -> Finding:
    """Whether `say` could play."""
    try:
        return Finding(name="Sound", mark="ok", seen=sound.describe())
    except NoSoundError as error:
        return Finding(name="Sound", mark="note", seen="no device", advice=str(error))

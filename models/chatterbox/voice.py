"""Voices: the one that comes with a checkpoint, and those of recordings. Worker threads.

Source: resemble-ai/chatterbox, `tts.py` and `models/s3gen/s3gen.py` (MIT): which seconds of a
recording each part hears, and the form of `conds.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.mel import vocoder_mel
from models.audio.reference import REFERENCE_AUDIO, Reference, read_reference
from models.audio.resample import resample
from models.audio.speaker_embedding import CamPlus
from models.audio.speech_tokenizer import SpeechTokenizer
from models.chatterbox.config import SAMPLE_RATE_HZ
from models.chatterbox.voice_encoder import RATE_HZ, VoiceEncoder
from models.checkpoint import unreadable
from models.errors import PlanError, WeightError
from models.mapped import map_torch_file
from models.mapped import own as owned
from models.spec import OptionValue, PlanRequest

DEFAULT: Final = "default"
CODEC_HEARS_S: Final = 10
"""Seconds of a recording that the codec goes on from; the voice encoder hears all of it."""
MEL_N_FFT, MEL_HOP = 1920, 480
MEL_HIGH_HZ: Final = 8000.0
N_MELS: Final = 80
EMBEDDING_SIZE: Final = 192
"""Numbers that the codec is told a voice by."""
MOST_TOKENS: Final = 375
"""Of what a voice has said: 15 s, the longest that any model of the family hears."""
MAX_VOICES: Final = 32
MAX_READY: Final = 8
"""Voices kept ready: what one leaves in the codec has 92 MB, of Turbo 13."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyVoice:
    """A voice as an LM and the codec take it: rows `(n, H)`, and seeds of states, on the CPU."""

    rows: Tensor
    codec_state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What is known of a voice, on the CPU.

    Args:
        key: names it.
        speaker: `(n,)`, the vector that the LM knows it by.
        tokens: `(n,)` int64, speech tokens that the LM looks at.
        prompt_tokens: `(m,)` int64, those that the codec goes on from.
        prompt_mel: `(2 * m, n_mels)`, the mel frames of these.
        embedding: `(n,)`, the vector that the codec knows it by.
    """

    key: str
    speaker: Tensor
    tokens: Tensor
    prompt_tokens: Tensor
    prompt_mel: Tensor
    embedding: Tensor


class Listener(nn.Module):
    """Hears the voices of recordings.

    Args:
        encoder: for the LM.
        tokenizer: for both.
        embedder: for the codec.
        lm_hears_s: seconds of a recording that become tokens for the LM.
    """

    def __init__(
        self,
        encoder: VoiceEncoder,
        tokenizer: SpeechTokenizer,
        embedder: CamPlus,
        lm_hears_s: int,
    ) -> None:
        super().__init__()
        self.lm_hears_s = lm_hears_s
        self.encoder, self.tokenizer, self.embedder = encoder, tokenizer, embedder
        self._voices: ContentCache[Voice] = ContentCache(MAX_VOICES)

    def voice(self, reference: Reference) -> Voice:
        """The voice of a recording at 24 kHz, heard once."""
        return self._voices.get(reference.key, lambda: self._heard(reference))

    def _heard(self, reference: Reference) -> Voice:
        pcm = torch.from_numpy(reference.pcm)
        beginning = pcm[: CODEC_HEARS_S * SAMPLE_RATE_HZ]
        slow, slow_beginning = (resample(one, SAMPLE_RATE_HZ, RATE_HZ) for one in (pcm, beginning))
        tokens, prompt = self.tokenizer.tokens_of(
            [slow[: self.lm_hears_s * RATE_HZ], slow_beginning]
        )
        mel = vocoder_mel(
            beginning,
            n_mels=N_MELS,
            n_fft=MEL_N_FFT,
            hop=MEL_HOP,
            rate_hz=SAMPLE_RATE_HZ,
            high_hz=MEL_HIGH_HZ,
        ).T
        n_tokens = min(len(prompt), len(mel) // 2)
        return Voice(
            key=reference.key,
            speaker=self.encoder(slow.to(self.encoder.proj.weight.device)).cpu(),
            tokens=tokens,
            prompt_tokens=prompt[:n_tokens],
            prompt_mel=mel[: 2 * n_tokens],
            embedding=self.embedder.embed(slow_beginning),
        )


def voice_of(
    request: PlanRequest,
    options: Mapping[str, OptionValue],
    listener: Listener,
    own: Voice | None,
) -> Voice:
    """The voice that a request asks for.

    Args:
        request: may hold a recording.
        options: checked; may hold one.
        listener: hears it.
        own: of the checkpoint, taken where no recording is given.

    Raises:
        PlanError: `missing_audio`, and those of `models.audio.reference.read_reference`.
    """
    reference = read_reference(request, options, SAMPLE_RATE_HZ)
    if reference is not None:
        return listener.voice(reference)
    if own is None:
        message = f"the checkpoint has no voice of its own: give {REFERENCE_AUDIO.name}"
        raise PlanError("missing_audio", message, REFERENCE_AUDIO.name)
    return own


def read_default_voice(path: Path) -> Voice:
    """The voice of a checkpoint. Raises: `WeightError`, it names what is missing or misshapen."""
    try:
        held = map_torch_file(path)
    # torch raises what its parsers raise: zip, pickle and runtime errors.
    except Exception as error:
        raise unreadable(path, "a voice", error) from error

    def tensor(part: str, name: str, n_axes: int) -> Tensor:
        values: Any = held.get(part) if isinstance(held, Mapping) else None
        found = values.get(name) if isinstance(values, Mapping) else None
        if not isinstance(found, Tensor) or found.dim() != n_axes or len(found) != 1:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise WeightError(
                f"{path.name} has {part}.{name} = {shown}, must be one row of numbers"
            )
        numbers = owned(found[0], torch.float32)
        if not numbers.isfinite().all():
            raise WeightError(f"{path.name} has {part}.{name} with what is no number")
        return numbers

    def tokens(part: str, name: str) -> Tensor:
        found = tensor(part, name, 2).long()
        if not 0 < len(found) <= MOST_TOKENS or int(found.min()) < 0:
            raise WeightError(
                f"{path.name} has {part}.{name} = {len(found)} numbers, "
                f"must be 1 to {MOST_TOKENS} speech tokens"
            )
        return found

    voice = Voice(
        key=DEFAULT,
        speaker=tensor("t3", "speaker_emb", 2),
        tokens=tokens("t3", "cond_prompt_speech_tokens"),
        prompt_tokens=tokens("gen", "prompt_token"),
        prompt_mel=tensor("gen", "prompt_feat", 3),
        embedding=tensor("gen", "embedding", 2),
    )
    for name, found, wanted in (
        ("prompt_feat", voice.prompt_mel.shape[1], N_MELS),
        ("embedding", len(voice.embedding), EMBEDDING_SIZE),
    ):
        if found != wanted:
            raise WeightError(f"{path.name} has gen.{name} of {found} numbers, must be {wanted}")
    n_tokens, n_frames = len(voice.prompt_tokens), len(voice.prompt_mel)
    if n_frames != 2 * n_tokens:
        raise WeightError(f"{path.name} has {n_frames} mel frames for {n_tokens} prompt tokens")
    return voice

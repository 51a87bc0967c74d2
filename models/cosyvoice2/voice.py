"""Voices of `cosyvoice2`: of recordings, and those that a folder brings along. Worker threads.

A voice is what its recording left in the codec: speech tokens with their mel frames, and a vector.
Source: CosyVoice, `cli/frontend.py` (Apache-2.0): which part hears what, and the form of
`spk2info.pt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.mel import vocoder_mel
from models.audio.reference import Reference
from models.audio.resample import resample
from models.audio.speaker_embedding import RATE_HZ, SpeakerEmbedder
from models.audio.speech_tokenizer import SpeechTokenizer
from models.checkpoint import REMEDY, unreadable
from models.codecs.conformer import FACTOR
from models.cosyvoice2.vocoder import MelConfig, VocoderConfig
from models.errors import WeightError
from models.mapped import map_torch_file, own

MAX_VOICES: Final = 8
"""Voices kept: what one leaves in the codec may have 100 MB (`models.cosyvoice2.vocoder`)."""
SPEAKER, TOKENS, MEL, WORDS = (
    "flow_embedding",
    "flow_prompt_speech_token",
    "prompt_speech_feat",
    "prompt_text",
)
"""Keys of a voice in `spk2info.pt` that was made of a recording."""
LONE_SPEAKER: Final = "embedding"
"""Key of one that is a vector alone."""

Seed = Callable[[Tensor, Tensor, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the codec goes on from, on the CPU.

    Args:
        codes: `(n,)` int64, speech tokens of the recording.
        mel: `(n_mels, 2 * n)`, its mel frames.
        speaker: `(size,)`, the vector of the voice.
    """

    codes: Tensor
    mel: Tensor
    speaker: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice to speak with.

    Args:
        key: names it.
        codes: speech tokens of its recording.
        codec_state: of a codec that has spoken these, by name.
        words: ids of what is said in the recording, where that is known for all requests.
    """

    key: str
    codes: Sequence[int]
    codec_state: Mapping[str, Tensor]
    words: Sequence[int] = ()


class Listener(nn.Module):
    """Hears the voices of recordings.

    Args:
        tokenizer: of speech.
        embedder: of speakers.
        mel: as the flow knows mel frames.
    """

    def __init__(
        self, tokenizer: SpeechTokenizer, embedder: SpeakerEmbedder, mel: MelConfig
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.embedder = embedder
        self.mel = mel

    def hear(self, reference: Reference) -> Prompt:
        """What the codec goes on from, of a recording at the rate of the mel frames."""
        pcm = torch.from_numpy(reference.pcm)
        slow = resample(pcm, reference.rate_hz, RATE_HZ)
        mel = vocoder_mel(
            pcm,
            n_mels=self.mel.n_mels,
            n_fft=self.mel.n_fft,
            hop=self.mel.hop,
            rate_hz=self.mel.rate_hz,
            high_hz=self.mel.high_hz,
        )
        codes = self.tokenizer.tokens(slow)
        # One of the two may reach a little further.
        n = min(len(codes), mel.shape[1] // FACTOR)
        speaker = self.embedder.embed(slow)
        return Prompt(codes=codes[:n], mel=mel[:, : FACTOR * n], speaker=speaker)


class Voices(nn.Module):
    """Voices as they are asked for, each made once.

    Args:
        listener: hears recordings.
        named: those of the folder, by name, and the words of each.
        seed: what codes, mel frames and the vector of a voice leave in the codec.
    """

    def __init__(
        self,
        listener: Listener,
        named: Mapping[str, tuple[Prompt, Sequence[int]]],
        seed: Seed,
    ) -> None:
        super().__init__()
        self.listener = listener
        self._named = named
        self._seed = seed
        self._voices: ContentCache[Voice] = ContentCache(MAX_VOICES)

    def of_recording(self, reference: Reference) -> Voice:
        """The voice of a recording."""
        return self._voices.get(
            reference.key, lambda: self._made(reference.key, self.listener.hear(reference), ())
        )

    def called(self, name: str) -> Voice:
        """A voice of the folder; it has it."""
        prompt, words = self._named[name]
        return self._voices.get(f"named/{name}", lambda: self._made(f"named/{name}", prompt, words))

    def _made(self, key: str, prompt: Prompt, words: Sequence[int]) -> Voice:
        state = self._seed(prompt.codes, prompt.mel, prompt.speaker)
        return Voice(key=key, codes=prompt.codes.tolist(), codec_state=state, words=words)


def read_voices(
    path: Path, config: VocoderConfig, n_text_ids: int
) -> dict[str, tuple[Prompt, Sequence[int]]]:
    """The voices of `spk2info.pt`, each with the ids of its words; none if there is no such file.

    Raises:
        WeightError: the file is damaged, or a voice is not of its form; it is named.
    """
    if not path.is_file():
        return {}
    try:
        held = map_torch_file(path)
    # torch raises what its parsers raise: zip, pickle and runtime errors.
    except Exception as error:
        raise unreadable(path, "voices", error) from error
    if not isinstance(held, dict) or not all(isinstance(one, dict) for one in held.values()):
        raise WeightError(f"{path} holds no voices by name; {REMEDY}")
    return {
        str(name): _Entry(f"{path.name}, voice {name!r}", one).read(config, n_text_ids)
        for name, one in held.items()
    }


@dataclass(frozen=True, slots=True)
class _Entry:
    """A voice of `spk2info.pt`, each part of it checked when it is taken."""

    source: str
    values: Mapping[Any, Any]

    def read(self, config: VocoderConfig, n_text_ids: int) -> tuple[Prompt, Sequence[int]]:
        """Raises: `WeightError`."""
        size, n_mels = config.flow.speaker_dim, config.flow.flow.n_mels
        if SPEAKER not in self.values:
            nothing = torch.zeros(0, dtype=torch.int64)
            speaker = self._take(LONE_SPEAKER, 1, size)[0]
            return Prompt(codes=nothing, mel=torch.zeros(n_mels, 0), speaker=speaker), ()
        codes = self._ids(TOKENS, config.n_codes)
        mel = self._take(MEL, 1, FACTOR * len(codes), n_mels)[0].T
        speaker = self._take(SPEAKER, 1, size)[0]
        words = self._ids(WORDS, n_text_ids).tolist() if WORDS in self.values else ()
        return Prompt(codes=codes, mel=mel, speaker=speaker), words

    def _take(self, key: str, *shape: int) -> Tensor:
        value = self._tensor(key)
        if tuple(value.shape) != shape:
            raise WeightError(f"{self.source}: {key} is {tuple(value.shape)}, expected {shape}")
        return own(value, torch.float32)

    def _ids(self, key: str, n_ids: int) -> Tensor:
        value = self._tensor(key)
        if value.dim() != 2 or len(value) != 1 or value.is_floating_point():
            raise WeightError(f"{self.source}: {key} is {tuple(value.shape)}, expected (1, n) ids")
        ids = own(value[0], torch.int64)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < n_ids:
            raise WeightError(f"{self.source}: {key} has ids that are none of {n_ids}")
        return ids

    def _tensor(self, key: str) -> Tensor:
        value = self.values.get(key)
        if not isinstance(value, Tensor):
            raise WeightError(f"{self.source} has no {key}; {REMEDY}")
        return value

"""Voices of recordings, as Base checkpoints take them: a vector, or the recording's codes with it.

Worker threads. Source: `qwen-tts` 0.1.1, `qwen3_tts_model.py` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.reference import Reference
from models.codecs.mimi import load_mimi_encoder
from models.codecs.qwen import QwenCodec
from models.qwen3_tts.config import VoiceConfig
from models.qwen3_tts.speaker import SpeakerEncoder
from models.weights import load_weights

SPEAKER: Final = "speaker_encoder."
LISTENER: Final = "encoder."
MAX_VOICES: Final = 32
"""Voices kept; one with codes takes 3 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice to speak with.

    Args:
        key: names it.
        vector: `(H,)`, stands where others have a speaker's row.
        frames: codes of the recording `(T, Q)`, where its words are known.
        codec_state: of a codec that has decoded these, by name.
    """

    key: str
    vector: Tensor
    frames: Tensor | None = None
    codec_state: Mapping[str, Tensor] = field(default_factory=dict)


class VoiceEncoder(nn.Module):
    """Recordings to voices.

    Args:
        config: shape of the weights.
        weights: of the LM's files, by the checkpoint's keys; those of the speaker encoder are taken
            out.
        codec_weights: of the codec's files.
        n_codebooks: levels of codes that count.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: VoiceConfig,
        weights: dict[str, Tensor],
        codec_weights: Mapping[str, Tensor],
        n_codebooks: int,
    ) -> None:
        super().__init__()
        self.rate_hz = config.speaker.rate_hz
        self.n_codebooks = n_codebooks
        self.speaker = SpeakerEncoder(config.speaker)
        own = {
            key.removeprefix(SPEAKER): weights.pop(key)
            for key in list(weights)
            if key.startswith(SPEAKER)
        }
        load_weights(self.speaker, own, source="model.safetensors", prefix=SPEAKER)
        heard = {
            key.removeprefix(LISTENER): tensor
            for key, tensor in codec_weights.items()
            if key.startswith(LISTENER)
        }
        source = "speech_tokenizer/model.safetensors"
        self.listener = load_mimi_encoder(config.listener, heard, source=source, prefix=LISTENER)
        self._voices: ContentCache[Voice] = ContentCache(MAX_VOICES)
        self.requires_grad_(False)

    def voice(self, reference: Reference, codec: QwenCodec, *, has_words: bool) -> Voice:
        """The voice of a recording, with its codes where the words are known."""
        key = f"{reference.key}/{'codes' if has_words else 'vector'}"
        return self._voices.get(key, lambda: self._made(key, reference, codec, has_words))

    def _made(self, key: str, reference: Reference, codec: QwenCodec, has_words: bool) -> Voice:
        weight = self.speaker.fc.weight
        pcm = torch.from_numpy(reference.pcm).to(weight.device)
        vector = self.speaker(pcm).cpu()
        if not has_words:
            return Voice(key=key, vector=vector)
        frames = self.listener.encode(pcm.to(weight.dtype).unsqueeze(0))[0, :, : self.n_codebooks]
        state = {name: tensor.cpu() for name, tensor in codec.state_after(frames).items()}
        return Voice(key=key, vector=vector, frames=frames.cpu(), codec_state=state)

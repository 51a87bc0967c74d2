"""Speech tokens to PCM: Chatterbox's flow, streamed by chunks, and its beginning faded in.

The published code decodes an utterance at once, and lets every frame see all others: that has no
exact streamed form. Here frames see their own chunk of a second, what is remembered of the chunks
before it, and the beginning of the voice's prompt; the architecture is that of CosyVoice 2, which
was trained for both. On small random weights of the published layout the mel frames then differ
from those made at once by less than 0.1 of their own deviation, and nowhere by more than 1.2
(`tests/parity/test_chatterbox_codec.py`); on random ones of the published size by 0.09 and 0.43; on
real ones it has not been measured. Made at once, they are the reference's (`SpeechFlow`, not
`is_chunked`).

The noise that the flow begins with is a fixed table over time; the reference draws it anew.

Source: resemble-ai/chatterbox, `models/s3gen/s3gen.py` (MIT).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.chatterbox.config import SAMPLES_PER_FRAME
from models.chatterbox.mean_unet import MeanUnet
from models.chatterbox.shapes import flow_config, hift_config, unet_config
from models.chatterbox.voice import Voice
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift, HiftConfig, make_hift
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig, make_speech_flow
from models.codecs.token2wav import Token2Wav
from models.codecs.unet import Unet, UnetConfig
from models.errors import WeightError
from models.spec import CodecSpec, StateSpec

CHUNK_TOKENS: Final = 25
KEPT: Final = KeptFrames(first=50, last=100)
"""1 s of the prompt's beginning and 2 s of what was before a chunk; in the published size a second
of it takes 29 MB of a stream's state."""
HEARD: Final = StateSpec(name="n_samples", shape=(1,), dtype="int64")
"""Samples that a stream has been given."""


class SpeechCodec(nn.Module):
    """The detokenizer, and the soft beginning of what it says.

    Args:
        sound: the detokenizer.
    """

    fade: Tensor

    def __init__(self, sound: Token2Wav) -> None:
        super().__init__()
        self.sound = sound
        self.spec = codec_spec(sound.spec)
        self.register_buffer("fade", fade_in(), persistent=False)

    def seed(self, voice: Voice) -> dict[str, Tensor]:
        """What a voice leaves in the state of a stream, on the host. Worker thread."""
        return self.sound.seed(voice.prompt_tokens, voice.prompt_mel.T, voice.embedding)

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """One chunk of each stream; see `models.base.SpeechModel.decode`."""
        made = self.sound.decode(frames, n_valid, state, is_first, is_last)
        n_before = state[HEARD.name]
        at = n_before + torch.arange(made.pcm.shape[1], device=made.pcm.device)
        gain = self.fade[at.clamp(max=len(self.fade) - 1)]
        heard = n_before + made.n_samples.unsqueeze(1)
        return Decoded(
            pcm=made.pcm * gain,
            n_samples=made.n_samples,
            state={**made.state, HEARD.name: heard},
        )


def codec_spec(spec: CodecSpec) -> CodecSpec:
    """The detokenizer's facts with what the fade needs."""
    return replace(spec, state=(*spec.state, HEARD))


def fade_in() -> Tensor:
    """Gains of the first samples, the last of them 1: 20 ms of silence, and 20 ms of rise.

    It hides what is left of the prompt at the join.
    """
    half = SAMPLES_PER_FRAME // 2
    rise = (torch.cos(torch.linspace(math.pi, 0, half)) + 1) / 2
    return torch.cat([torch.zeros(half), rise])


def make_codec(
    flow: Mapping[str, Tensor],
    vocoder: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    *,
    source: str,
) -> SpeechCodec:
    """The detokenizer with its weights.

    Args:
        flow: those of the flow, without their prefix.
        vocoder: those of the vocoder, without theirs.
        tensors: of the whole file, whose shapes tell the sizes.
        source: the file, for messages.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    flows, unet, hift = _configs(tensors, source)
    made = make_speech_flow(flows, _estimator(flows, unet), flow, source=f"{source}, flow")
    return SpeechCodec(Token2Wav(made, make_hift(hift, vocoder, source=f"{source}, mel2wav")))


def make_codec_spec(tensors: Mapping[str, Tensor], *, source: str) -> CodecSpec:
    """Facts of the detokenizer, by the shapes of its tensors. Raises: `WeightError`."""
    flows, unet, hift = _configs(tensors, source)
    with torch.device("meta"):
        flow = SpeechFlow(flows, _estimator(flows, unet))
        return codec_spec(Token2Wav(flow, Hift(hift)).spec)


def _estimator(flows: SpeechFlowConfig, unet: UnetConfig) -> Unet:
    """Of Turbo's flow, whose steps are even, or of the others'."""
    return MeanUnet(unet, flows.flow.n_steps) if flows.flow.is_even else Unet(unet)


def _configs(
    tensors: Mapping[str, Tensor], source: str
) -> tuple[SpeechFlowConfig, UnetConfig, HiftConfig]:
    flows = flow_config(tensors, CHUNK_TOKENS, KEPT, source)
    unet, hift = unet_config(tensors, source), hift_config(tensors, source)
    n_mels = flows.flow.n_mels
    for part, found in (("flow.decoder", unet.n_mels), ("mel2wav", hift.n_mels)):
        if found != n_mels:
            raise WeightError(f"{source}: {part} has mel frames of {found}, flow of {n_mels}")
    return flows, unet, hift

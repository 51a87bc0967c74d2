"""Shapes of the codec's parts in `s3gen.safetensors`: read from its tensors, no weights.

What shapes do not tell is what the published code fixes.

Source: resemble-ai/chatterbox, `models/s3gen/s3gen.py` (MIT), `hifigan.py`, `decoder.py` (both
Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor

from models.chatterbox.config import SAMPLE_RATE_HZ, size_of
from models.codecs.conformer import FACTOR, ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import HiftConfig
from models.codecs.speech_flow import SpeechFlowConfig
from models.codecs.unet import UnetConfig
from models.errors import WeightError

FLOW, VOCODER = "flow.", "mel2wav."
"""Of the keys."""
HEAD_DIM: Final = 64
"""Of the estimator."""
N_STEPS: Final = 10
GUIDANCE: Final = 0.7
MEAN_STEPS: Final = 2
"""Of a flow that was distilled: it is told where a step ends, and guided already."""
MIXER: Final = "decoder.estimator.time_embed_mixer.weight"
"""Only the estimator of such a flow has it."""
STRIDES: Final = (8, 5, 3)
DILATIONS: Final = (1, 3, 5)
N_HOP: Final = 4
_PAST_NORM: Final = ("weight", "weight_v", "parametrizations.weight.original1")


class Shapes:
    """Sizes in a file.

    Args:
        tensors: of the file.
        prefix: of the keys that are asked for.
        source: the file, for messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, source: str) -> None:
        self._tensors, self._prefix, self._source = tensors, prefix, source

    def size(self, key: str, axis: int) -> int:
        """How long a tensor is. Raises: `WeightError`, it names the tensor."""
        return size_of(self._tensors, f"{self._prefix}{key}", axis, self._source)

    def normed(self, stem: str, axis: int) -> int:
        """The same of the weight of a layer that may be weight-normed."""
        found = [one for one in _PAST_NORM if f"{self._prefix}{stem}.{one}" in self._tensors]
        return self.size(f"{stem}.{found[0] if found else _PAST_NORM[0]}", axis)

    def count(self, stem: str) -> int:
        """How many parts `stem.0`, `stem.1`, ... there are. Raises: `WeightError`: none."""
        start = f"{self._prefix}{stem}."
        parts = {key.removeprefix(start).split(".")[0] for key in self._under(start)}
        if not parts:
            raise WeightError(f"{self._source} lacks {start}*: it is no Chatterbox")
        return len(parts)

    def _under(self, start: str) -> Iterator[str]:
        return (key for key in self._tensors if key.startswith(start))


def n_speech_tokens(tensors: Mapping[str, Tensor], source: str) -> int:
    """Tokens that the codec knows. Raises: `WeightError`."""
    return Shapes(tensors, FLOW, source).size("input_embedding.weight", 0)


def is_mean_flow(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the codec's flow is told where a step ends."""
    return f"{FLOW}{MIXER}" in tensors


def flow_config(
    tensors: Mapping[str, Tensor], chunk_tokens: int, kept: KeptFrames, source: str
) -> SpeechFlowConfig:
    """The shape of the flow.

    Args:
        tensors: of the file.
        chunk_tokens: that see one another.
        kept: mel frames before a chunk that are remembered.
        source: the file, for messages.

    Raises:
        WeightError: a tensor is missing or of no such shape; it is named.
    """
    shapes = Shapes(tensors, FLOW, source)
    is_mean = is_mean_flow(tensors)
    return SpeechFlowConfig(
        n_tokens=n_speech_tokens(tensors, source),
        speaker_dim=shapes.size("spk_embed_affine_layer.weight", 1),
        encoder=ConformerConfig(
            n_in=shapes.size("encoder.embed.out.0.weight", 1),
            size=shapes.size("encoder.embed.out.0.weight", 0),
            n_heads=shapes.size("encoder.encoders.0.self_attn.pos_bias_u", 0),
            inner=shapes.size("encoder.encoders.0.feed_forward.w_1.weight", 0),
            n_layers=shapes.count("encoder.encoders"),
            n_up_layers=shapes.count("encoder.up_encoders"),
            lookahead=shapes.size("encoder.pre_lookahead_layer.conv1.weight", 2) - 1,
            chunk_tokens=chunk_tokens,
            kept_tokens=kept.n_frames // FACTOR,
        ),
        flow=FlowConfig(
            n_mels=shapes.size("encoder_proj.weight", 0),
            n_steps=MEAN_STEPS if is_mean else N_STEPS,
            guidance=0.0 if is_mean else GUIDANCE,
            is_even=is_mean,
            chunk_frames=FACTOR * chunk_tokens,
            kept=kept,
        ),
    )


def unet_config(tensors: Mapping[str, Tensor], source: str) -> UnetConfig:
    """The shape of the flow's estimator. Raises: `WeightError`."""
    shapes = Shapes(tensors, f"{FLOW}decoder.estimator.", source)
    return UnetConfig(
        n_mels=shapes.size("final_proj.weight", 0),
        n_channels=shapes.size("final_proj.weight", 1),
        n_layers=shapes.count("down_blocks.0.1"),
        n_middle=shapes.count("mid_blocks"),
        n_heads=shapes.size("down_blocks.0.1.0.attn1.to_q.weight", 0) // HEAD_DIM,
        head_dim=HEAD_DIM,
    )


def hift_config(tensors: Mapping[str, Tensor], source: str) -> HiftConfig:
    """The shape of the vocoder. Raises: `WeightError`."""
    shapes = Shapes(tensors, VOCODER, source)
    n_blocks = shapes.count("resblocks") // len(STRIDES)
    return HiftConfig(
        sample_rate_hz=SAMPLE_RATE_HZ,
        n_mels=shapes.normed("conv_pre", 1),
        n_channels=shapes.normed("conv_pre", 0),
        strides=STRIDES,
        kernels=tuple(shapes.normed(f"ups.{n}", 2) for n in range(len(STRIDES))),
        n_fft=shapes.normed("conv_post", 0) - 2,
        n_hop=N_HOP,
        residual_kernels=tuple(
            shapes.normed(f"resblocks.{n}.convs1.0", 2) for n in range(n_blocks)
        ),
        residual_dilations=(DILATIONS,) * n_blocks,
        source_kernels=tuple(
            shapes.normed(f"source_resblocks.{n}.convs1.0", 2) for n in range(len(STRIDES))
        ),
        source_dilations=(DILATIONS,) * len(STRIDES),
        n_f0_channels=shapes.normed("f0_predictor.condnet.0", 0),
        n_harmonics=shapes.size("m_source.l_linear.weight", 1) - 1,
        sine_gain=0.1,
        noise_gain=0.003,
        voiced_hz=10.0,
        # Chatterbox took the older form of the source with it to 24 kHz.
        is_interpolated=False,
        slope=0.1,
        limit=0.99,
    )

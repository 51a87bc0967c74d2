"""Shape of a `token2wav` folder: `flow.yaml` states that of `flow.pt`; `hift.pt` tells its own.

What a stream remembers, in the published size: 0.32 MiB a mel frame in half precision (inputs of
16 attention layers in 10 steps and both halves of the guidance batch), of 76 frames of the voice's
prompt and the last 50, and 2.6 MiB of convolutions' inputs. The reference keeps keys and values,
twice as wide, of the whole prompt and the last 100.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `token2wav.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from models.checkpoint import Config, read_torch_file
from models.codecs.conformer import FACTOR, ConformerConfig
from models.codecs.dit import Dit, DitConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift, HiftConfig, make_hift
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig, make_speech_flow
from models.codecs.token2wav import Token2Wav, Token2WavConfig
from models.errors import WeightError
from models.hyperpyyaml import part_of, read_hyperpyyaml
from models.spec import CodecSpec

FLOW_FILE: Final = "flow.pt"
HIFT_FILE: Final = "hift.pt"
YAML_FILE: Final = "flow.yaml"
CHUNK_TOKENS: Final = 25
PROMPT_TOKENS: Final = 38
"""Of the end of a voice's prompt, remembered for good: with a first chunk of 12, the grid of chunks
begins behind them."""
RECENT_TOKENS: Final = 25
"""Before a chunk."""
N_STEPS: Final = 10
SILENCE: Final = 4218
"""Source: `Token2wav.set_stream_cache`."""

HIFT: Final = HiftConfig(
    sample_rate_hz=24_000,
    n_mels=80,
    n_channels=512,
    strides=(8, 5, 3),
    kernels=(16, 11, 7),
    n_fft=16,
    n_hop=4,
    residual_kernels=(3, 7, 11),
    residual_dilations=((1, 3, 5),) * 3,
    source_kernels=(7, 7, 11),
    source_dilations=((1, 3, 5),) * 3,
    n_f0_channels=512,
    n_harmonics=8,
    sine_gain=0.1,
    noise_gain=0.003,
    voiced_hz=10.0,
    is_interpolated=True,
    slope=0.1,
    limit=0.99,
)
"""No file states it: these are the defaults of the reference's class, which it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderConfig:
    """What is behind the LM.

    Args:
        flow: of codes to mel frames.
        estimator: of the flow.
        streaming: how codes are streamed.
    """

    flow: SpeechFlowConfig
    estimator: DitConfig
    streaming: Token2WavConfig

    @property
    def n_codes(self) -> int:
        """Of speech."""
        return self.flow.n_tokens

    @property
    def n_mels(self) -> int:
        """Channels of a mel frame."""
        return self.flow.flow.n_mels

    def codec_spec(self) -> CodecSpec:
        """Facts of the detokenizer, without weights."""
        with torch.device("meta"):
            flow = SpeechFlow(self.flow, Dit(self.estimator))
            hift = Hift(replace(HIFT, n_mels=self.n_mels))
            return Token2Wav(flow, hift, self.streaming).spec

    def load(self, folder: Path) -> Token2Wav:
        """The detokenizer with its weights, on the CPU.

        Raises:
            WeightError: a file is missing or damaged, or keys do not fit; they are named.
        """
        flow, hift = (read_torch_file(folder / name) for name in (FLOW_FILE, HIFT_FILE))
        return Token2Wav(
            make_speech_flow(self.flow, Dit(self.estimator), flow, source=FLOW_FILE),
            make_hift(self._hift(hift), hift, source=HIFT_FILE),
            self.streaming,
        )

    def _hift(self, tensors: Mapping[str, Tensor]) -> HiftConfig:
        own = {key.removeprefix("generator."): tensor for key, tensor in tensors.items()}
        for key in ("conv_pre.bias", "f0_predictor.condnet.0.bias"):
            if key not in own:
                raise WeightError(f"{HIFT_FILE} lacks {key}: it is no vocoder of this family")
        return replace(
            HIFT,
            n_mels=self.n_mels,
            n_channels=len(own["conv_pre.bias"]),
            n_f0_channels=len(own["f0_predictor.condnet.0.bias"]),
        )


def read_vocoder_config(folder: Path) -> VocoderConfig:
    """What `flow.yaml` states. Raises: `WeightError`, it names the file or the key."""
    flow = part_of(read_hyperpyyaml(folder / YAML_FILE), "flow", "CausalMaskedDiffWithXvec")
    decoder = part_of(flow, "decoder", "CausalConditionalCFM")
    flow.expect("output_type", "mel")
    n_mels = flow.count("output_size")
    return VocoderConfig(
        flow=SpeechFlowConfig(
            n_tokens=flow.count("vocab_size"),
            speaker_dim=flow.count("spk_embed_dim"),
            encoder=_encoder(
                part_of(flow, "encoder", "UpsampleConformerEncoderV2"), flow.count("input_size")
            ),
            flow=FlowConfig(
                n_mels=n_mels,
                n_steps=N_STEPS,
                guidance=decoder.number("inference_cfg_rate"),
                chunk_frames=FACTOR * CHUNK_TOKENS,
                kept=KeptFrames(first=FACTOR * PROMPT_TOKENS, last=FACTOR * RECENT_TOKENS),
            ),
        ),
        estimator=_estimator(part_of(decoder, "estimator", "DiT"), n_mels),
        streaming=Token2WavConfig(silence=SILENCE),
    )


def _encoder(config: Config, n_in: int) -> ConformerConfig:
    for key, value in (
        ("input_size", n_in),
        ("input_layer", "linear"),
        ("up_stride", FACTOR),
        ("up_scale_factor", FACTOR),
        ("pos_enc_layer_type", "rel_pos_espnet"),
        ("selfattention_layer_type", "rel_selfattn"),
        ("key_bias", True),
        ("normalize_before", True),
        ("activation_type", "swish"),
    ):
        config.expect(key, value)
    size = config.count("output_size")
    return ConformerConfig(
        n_in=n_in,
        size=size,
        n_heads=config.divisor("attention_heads", size),
        inner=config.count("linear_units"),
        n_layers=config.count("num_blocks"),
        n_up_layers=config.count("num_up_blocks"),
        lookahead=config.count("pre_lookahead_len"),
        chunk_tokens=CHUNK_TOKENS,
        kept_tokens=RECENT_TOKENS,
        first_tokens=PROMPT_TOKENS,
        dtype="float16",
    )


def _estimator(config: Config, n_mels: int) -> DitConfig:
    config.expect("out_channels", n_mels)
    config.expect("in_channels", 4 * n_mels)
    size = config.count("hidden_size")
    return DitConfig(
        n_in=4 * n_mels,
        n_mels=n_mels,
        size=size,
        n_blocks=config.count("depth"),
        n_heads=config.count("num_heads"),
        head_dim=config.count("head_dim"),
        inner=int(size * config.positive("mlp_ratio")),
    )

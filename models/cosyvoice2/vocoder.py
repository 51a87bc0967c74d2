"""Shape of what is behind the LM: flow, vocoder, and mel frames of recordings, from the YAML file.

Source: CosyVoice, `cosyvoice2.yaml`; what it leaves to the classes' defaults is written out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from models.checkpoint import Config
from models.codecs.conformer import FACTOR, ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift, HiftConfig, make_hift
from models.codecs.hift_yaml import read_hift
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig, make_speech_flow
from models.codecs.token2wav import Token2Wav, Token2WavConfig
from models.codecs.unet import Unet, UnetConfig
from models.errors import WeightError
from models.hyperpyyaml import part_of
from models.spec import CodecSpec

FLOW_FILE, HIFT_FILE = "flow.pt", "hift.pt"
N_STEPS: Final = 10
"""Of the solver. Source: `CausalMaskedDiffWithXvec.inference`."""
N_UP_LAYERS: Final = 4
"""Source: `UpsampleConformerEncoder`."""
FIRST_CHUNKS, LAST_CHUNKS = 1, 2
"""Chunks of a second that the flow remembers of its voice's prompt, and of what was before a chunk.

The reference computes all that was before again with each chunk; later copies of its file state two
chunks, for caches of a fixed size (`num_decoding_left_chunks`). In the published size a chunk takes
29 MB, and a quarter of the arithmetic of a new one.
"""
ENCODER_CHUNKS: Final = 4
"""The same of the encoder, where a chunk takes 1.4 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MelConfig:
    """Mel frames as the flow knows them."""

    rate_hz: int
    n_mels: int
    n_fft: int
    hop: int
    high_hz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderConfig:
    """What is behind the LM.

    Args:
        flow: of speech tokens to mel frames.
        unet: its estimator.
        hift: of mel frames to PCM.
        mel: of recordings.
    """

    flow: SpeechFlowConfig
    unet: UnetConfig
    hift: HiftConfig
    mel: MelConfig

    @property
    def n_codes(self) -> int:
        """Speech tokens."""
        return self.flow.n_tokens

    @property
    def frames_per_code(self) -> int:
        """Mel frames of a speech token."""
        return FACTOR

    def make(self, flow: Mapping[str, Tensor], hift: Mapping[str, Tensor]) -> Token2Wav:
        """The detokenizer, of the tensors of `flow.pt` and `hift.pt`.

        Raises:
            WeightError: keys are missing, unexpected or misshapen; they are named.
        """
        return Token2Wav(
            make_speech_flow(self.flow, Unet(self.unet), flow, source=FLOW_FILE),
            make_hift(self.hift, hift, source=HIFT_FILE),
        )

    def codec_spec(self) -> CodecSpec:
        """Facts of the detokenizer, without weights."""
        with torch.device("meta"):
            return Token2Wav(SpeechFlow(self.flow, Unet(self.unet)), Hift(self.hift)).spec


def vocoder_config(config: Config) -> VocoderConfig:
    """What `cosyvoice2.yaml` states. Raises: `WeightError`, it names the key."""
    mel = _mel(part_of(config, "feat_extractor", "mel_spectrogram"))
    flow, hift = part_of(config, "flow", "CausalMaskedDiffWithXvec"), read_hift(config)
    flow.expect("token_mel_ratio", FACTOR)
    flow.expect("output_size", mel.n_mels)
    flow.expect("output_type", "mel")
    encoder = part_of(flow, "encoder", "UpsampleConformerEncoder")
    decoder = part_of(flow, "decoder", "CausalConditionalCFM")
    estimator = part_of(decoder, "estimator", "CausalConditionalDecoder")
    chunk_frames = estimator.integer("static_chunk_size")
    if chunk_frames < FACTOR or chunk_frames % FACTOR:
        raise WeightError(
            f"{config.source} has flow.decoder.estimator.static_chunk_size = {chunk_frames}, "
            f"must be mel frames of whole speech tokens, {FACTOR} each"
        )
    for held, expected, name in (
        (hift.sample_rate_hz, mel.rate_hz, "hift.sampling_rate"),
        (hift.samples_per_frame, mel.hop, "upsample_rates and istft_params of hift"),
        (hift.n_mels, mel.n_mels, "hift.in_channels"),
    ):
        if held != expected:
            raise WeightError(
                f"{config.source} has {name} that give {held}, feat_extractor states {expected}"
            )
    shape = _encoder(encoder, flow, chunk_frames // FACTOR)
    least_tokens = Token2WavConfig().first_tokens + shape.lookahead + 1
    if shape.chunk_tokens < least_tokens:
        raise WeightError(
            f"{config.source} has chunks of {shape.chunk_tokens} speech tokens (static_chunk_size) "
            f"and looks {shape.lookahead} ahead (pre_lookahead_len), must be {least_tokens} or more"
        )
    kept = KeptFrames(first=FIRST_CHUNKS * chunk_frames, last=LAST_CHUNKS * chunk_frames)
    return VocoderConfig(
        flow=SpeechFlowConfig(
            n_tokens=flow.count("vocab_size"),
            speaker_dim=flow.count("spk_embed_dim"),
            encoder=shape,
            flow=FlowConfig(
                n_mels=mel.n_mels,
                n_steps=N_STEPS,
                guidance=_solver(decoder).number("inference_cfg_rate"),
                chunk_frames=chunk_frames,
                kept=kept,
            ),
        ),
        unet=_unet(estimator, mel.n_mels),
        hift=hift,
        mel=mel,
    )


def _mel(config: Config) -> MelConfig:
    n_fft, rate_hz = config.count("n_fft"), config.count("sampling_rate")
    for key, value in (("win_size", n_fft), ("fmin", 0), ("center", False)):
        config.expect(key, value)
    high_hz = rate_hz / 2 if config.optional("fmax") is None else config.number("fmax")
    return MelConfig(
        rate_hz=rate_hz,
        n_mels=config.count("num_mels"),
        n_fft=n_fft,
        hop=config.count("hop_size"),
        high_hz=high_hz,
    )


def _encoder(config: Config, flow: Config, chunk_tokens: int) -> ConformerConfig:
    n_in = flow.count("input_size")
    for key, value in (
        ("input_size", n_in),
        ("input_layer", "linear"),
        ("pos_enc_layer_type", "rel_pos_espnet"),
        ("selfattention_layer_type", "rel_selfattn"),
        ("normalize_before", True),
        ("use_cnn_module", False),
        ("macaron_style", False),
        # Where only the estimator states it, both were trained with it.
        ("static_chunk_size", chunk_tokens),
    ):
        config.expect(key, value)
    size = config.count("output_size")
    return ConformerConfig(
        n_in=n_in,
        size=size,
        n_heads=config.divisor("attention_heads", size),
        inner=config.count("linear_units"),
        n_layers=config.count("num_blocks"),
        n_up_layers=N_UP_LAYERS,
        lookahead=flow.count("pre_lookahead_len"),
        chunk_tokens=chunk_tokens,
        kept_tokens=ENCODER_CHUNKS * chunk_tokens,
    )


def _solver(decoder: Config) -> Config:
    """How the flow is solved: a mapping of its own, or one within, by the library that makes it."""
    solver = decoder.part("cfm_params")
    solver = solver if solver.optional("content") is None else solver.part("content")
    solver.expect("solver", "euler")
    solver.expect("t_scheduler", "cosine")
    return solver


def _unet(config: Config, n_mels: int) -> UnetConfig:
    for key, value in (("in_channels", 4 * n_mels), ("out_channels", n_mels), ("act_fn", "gelu")):
        config.expect(key, value)
    channels = config.integers("channels")
    if len(channels) != 1:
        raise WeightError(
            f"{config.source} has {config.prefix}channels = {list(channels)}, must be one number"
        )
    return UnetConfig(
        n_mels=n_mels,
        n_channels=channels[0],
        n_layers=config.count("n_blocks"),
        n_middle=config.count("num_mid_blocks"),
        n_heads=config.count("num_heads"),
        head_dim=config.count("attention_head_dim"),
    )

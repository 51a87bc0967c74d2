"""Chatterbox as `loadtest.bench.published` makes other families."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from loadtest.bench.random_weights import draw, random_model
from models.chatterbox.codec import CHUNK_TOKENS, KEPT
from models.codecs.conformer import ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.hift import Hift, HiftConfig
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig
from models.codecs.unet import Unet, UnetConfig

WIDTH, INNER, N_QUERIES, SPEAKER = 1024, 4096, 32, 256
N_TEXT_IDS, N_SPEECH_IDS, N_CODES = 704, 8194, 6561
N_TEXT_PLACES, N_SPEECH_PLACES = 2050, 4100
FLOW: Final = SpeechFlowConfig(
    n_tokens=N_CODES,
    speaker_dim=192,
    encoder=ConformerConfig(
        n_in=512,
        size=512,
        n_heads=8,
        inner=2048,
        n_layers=6,
        n_up_layers=4,
        lookahead=3,
        chunk_tokens=CHUNK_TOKENS,
        kept_tokens=KEPT.n_frames // 2,
    ),
    flow=FlowConfig(n_mels=80, n_steps=10, guidance=0.7, chunk_frames=2 * CHUNK_TOKENS, kept=KEPT),
)
UNET: Final = UnetConfig(n_mels=80, n_channels=256, n_layers=4, n_middle=12, n_heads=8, head_dim=64)
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
    is_interpolated=False,
    slope=0.1,
    limit=0.99,
)


def make_chatterbox(folder: Path, n_layers: int) -> None:
    """The English model, with a voice; what hears recordings is as small as in the tests."""
    from tests.models.audio.tiny import camplus_weights, speech_tokenizer_weights
    from tests.models.chatterbox.tiny import make_tokenizer, make_voice, save_voice

    save_file(_lm(n_layers), folder / "t3_cfg.safetensors")
    parts = {
        "tokenizer": speech_tokenizer_weights(),
        "speaker_encoder": camplus_weights(),
        "flow": random_model(lambda: SpeechFlow(FLOW, Unet(UNET))).state_dict(),
        "mel2wav": random_model(lambda: Hift(HIFT)).state_dict(),
    }
    codec = {f"{part}.{key}": one for part, held in parts.items() for key, one in held.items()}
    save_file(codec, folder / "s3gen.safetensors")
    lstm = torch.nn.LSTM(40, SPEAKER, 3)
    encoder = {f"lstm.{key}": draw(*one.shape) for key, one in lstm.state_dict().items()}
    encoder |= {"proj.weight": draw(SPEAKER, SPEAKER), "proj.bias": draw(SPEAKER)}
    save_file(encoder, folder / "ve.safetensors")
    make_tokenizer(folder / "tokenizer.json")
    save_voice(folder / "conds.pt", make_voice(0))


def _lm(n_layers: int) -> dict[str, Tensor]:
    """Tensors of `t3_cfg.safetensors`. No library has them all: their keys are written out here."""
    perceiver = "cond_enc.perceiver."
    weights = {
        "text_emb.weight": draw(N_TEXT_IDS, WIDTH),
        "text_pos_emb.emb.weight": draw(N_TEXT_PLACES, WIDTH),
        "speech_emb.weight": draw(N_SPEECH_IDS, WIDTH),
        "speech_pos_emb.emb.weight": draw(N_SPEECH_PLACES, WIDTH),
        "speech_head.weight": draw(N_SPEECH_IDS, WIDTH),
        "tfmr.norm.weight": torch.ones(WIDTH),
        "cond_enc.spkr_enc.weight": draw(WIDTH, SPEAKER),
        "cond_enc.spkr_enc.bias": draw(WIDTH),
        "cond_enc.emotion_adv_fc.weight": draw(WIDTH, 1),
        f"{perceiver}pre_attention_query": draw(1, N_QUERIES, WIDTH),
        f"{perceiver}attn.norm.weight": torch.ones(WIDTH),
        f"{perceiver}attn.norm.bias": draw(WIDTH),
    }
    for name in ("to_q", "to_k", "to_v", "proj_out"):
        weights[f"{perceiver}attn.{name}.weight"] = draw(WIDTH, WIDTH)
        weights[f"{perceiver}attn.{name}.bias"] = draw(WIDTH)
    for idx in range(n_layers):
        layer = f"tfmr.layers.{idx}."
        for name in "qkvo":
            weights[f"{layer}self_attn.{name}_proj.weight"] = draw(WIDTH, WIDTH)
        for name in ("gate", "up"):
            weights[f"{layer}mlp.{name}_proj.weight"] = draw(INNER, WIDTH)
        weights[f"{layer}mlp.down_proj.weight"] = draw(WIDTH, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = torch.ones(WIDTH)
    return weights

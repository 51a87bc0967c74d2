"""Small random Chatterbox checkpoint folders in the layout of the hub, and a codec that spells.

That they have this layout the references say, which load and write files of it (`tests/parity`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from models.base import Decoded
from models.chatterbox.config import MULTILINGUAL, SAMPLES_PER_FRAME
from models.chatterbox.mean_unet import MeanUnet
from models.chatterbox.voice import Voice
from models.codecs.conformer import ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import Hift, HiftConfig
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig
from models.codecs.unet import Unet, UnetConfig
from models.spec import CodecSpec
from tests.models.audio.tiny import camplus_weights, speech_tokenizer_weights

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'-\"()"
N_MARKS = 260
"""Ids before the letters: the published tokenizers have their marks among the first."""
N_CODES = 6561
HIDDEN, INNER, N_LAYERS, N_QUERIES = 64, 96, 2, 4
N_TEXT_IDS, N_TEXT_PLACES, N_SPEECH_PLACES, N_POSITIONS = 400, 202, 304, 900
SPEAKER_SIZE = 24
WIDTH = 32
"""Of the codec's layers."""
KEPT = KeptFrames(first=0, last=0)
FLOW = SpeechFlowConfig(
    n_tokens=N_CODES,
    speaker_dim=192,
    encoder=ConformerConfig(
        n_in=WIDTH,
        size=WIDTH,
        n_heads=2,
        inner=2 * WIDTH,
        n_layers=1,
        n_up_layers=1,
        lookahead=3,
        chunk_tokens=25,
        kept_tokens=0,
    ),
    flow=FlowConfig(n_mels=80, n_steps=10, guidance=0.7, chunk_frames=50, kept=KEPT),
)
UNET = UnetConfig(n_mels=80, n_channels=WIDTH, n_layers=1, n_middle=1, n_heads=1, head_dim=64)
HIFT = HiftConfig(
    sample_rate_hz=24_000,
    n_mels=80,
    n_channels=WIDTH,
    strides=(8, 5, 3),
    kernels=(16, 11, 7),
    n_fft=16,
    n_hop=4,
    residual_kernels=(3, 7, 11),
    residual_dilations=((1, 3, 5),) * 3,
    source_kernels=(7, 7, 11),
    source_dilations=((1, 3, 5),) * 3,
    n_f0_channels=16,
    n_harmonics=8,
    sine_gain=0.1,
    noise_gain=0.003,
    voiced_hz=10.0,
    is_interpolated=False,
    slope=0.1,
    limit=0.99,
)


def make_checkpoint(folder: Path) -> Path:
    """All files of the English model."""
    generator = torch.Generator().manual_seed(41)
    save_file(lm_weights(generator), folder / "t3_cfg.safetensors")
    save_file(codec_weights(generator), folder / "s3gen.safetensors")
    save_file(voice_encoder_weights(generator), folder / "ve.safetensors")
    make_tokenizer(folder / "tokenizer.json")
    save_voice(folder / "conds.pt", make_voice(0, SPEAKER_SIZE))
    return folder


def make_multilingual_checkpoint(folder: Path) -> Path:
    """All files of the multilingual model, without those of the English one."""
    make_checkpoint(folder)
    (folder / "t3_cfg.safetensors").rename(folder / "t3_mtl23ls_v2.safetensors")
    (folder / "tokenizer.json").unlink()
    marks = [f"[{language}]" for language in MULTILINGUAL]
    make_tokenizer(folder / "grapheme_mtl_merged_expanded_v1.json", *marks)
    return folder


def make_turbo_checkpoint(folder: Path) -> Path:
    """All files of Turbo."""
    generator = torch.Generator().manual_seed(43)
    save_file(turbo_lm_weights(generator), folder / "t3_turbo_v1.safetensors")
    config = replace(FLOW, flow=replace(FLOW.flow, n_steps=2, guidance=0.0, is_even=True))
    flow = SpeechFlow(config, MeanUnet(UNET, 2))
    save_file(codec_weights(generator, flow), folder / "s3gen_meanflow.safetensors")
    save_file(voice_encoder_weights(generator), folder / "ve.safetensors")
    make_byte_tokenizer(folder)
    save_voice(folder / "conds.pt", make_voice(0, SPEAKER_SIZE))
    return folder


def lm_weights(generator: torch.Generator) -> dict[str, Tensor]:
    """Of `t3_cfg.safetensors`."""
    weights = {}

    def draw(key: str, *shape: int, std: float = 0.1) -> None:
        weights[key] = std * torch.randn(shape, generator=generator)

    for name, n in (("text", N_TEXT_IDS), ("speech", N_CODES + 5)):
        draw(f"{name}_emb.weight", n, HIDDEN, std=1.0)
        draw(f"{name}_head.weight", n, HIDDEN)
    # It speaks until the limit: a logit this low is never drawn.
    weights["speech_head.weight"][N_CODES:] = 0.0
    for name, n in (("text", N_TEXT_PLACES), ("speech", N_SPEECH_PLACES)):
        draw(f"{name}_pos_emb.emb.weight", n, HIDDEN, std=0.5)
    draw("tfmr.embed_tokens.weight", 8, HIDDEN)
    for idx in range(N_LAYERS):
        stem = f"tfmr.layers.{idx}"
        for part in "qkvo":
            draw(f"{stem}.self_attn.{part}_proj.weight", HIDDEN, HIDDEN)
        for part in ("gate", "up"):
            draw(f"{stem}.mlp.{part}_proj.weight", INNER, HIDDEN)
        draw(f"{stem}.mlp.down_proj.weight", HIDDEN, INNER)
        for part in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{stem}.{part}.weight"] = torch.ones(HIDDEN)
    weights["tfmr.norm.weight"] = torch.ones(HIDDEN)
    stem = "cond_enc.perceiver"
    draw("cond_enc.spkr_enc.weight", HIDDEN, SPEAKER_SIZE)
    draw("cond_enc.spkr_enc.bias", HIDDEN)
    draw("cond_enc.emotion_adv_fc.weight", HIDDEN, 1)
    draw(f"{stem}.pre_attention_query", 1, N_QUERIES, HIDDEN)
    for part in ("to_q", "to_k", "to_v", "proj_out"):
        draw(f"{stem}.attn.{part}.weight", HIDDEN, HIDDEN)
        draw(f"{stem}.attn.{part}.bias", HIDDEN)
    weights[f"{stem}.attn.norm.weight"] = torch.ones(HIDDEN)
    draw(f"{stem}.attn.norm.bias", HIDDEN)
    return weights


def turbo_lm_weights(generator: torch.Generator) -> dict[str, Tensor]:
    """Of `t3_turbo_v1.safetensors`."""
    weights = {}

    def draw(key: str, *shape: int, std: float = 0.15) -> None:
        weights[key] = std * torch.randn(shape, generator=generator)

    def norm(stem: str) -> None:
        weights[f"{stem}.weight"] = torch.ones(HIDDEN)
        draw(f"{stem}.bias", HIDDEN)

    for name, n in (("text", N_TEXT_IDS), ("speech", N_CODES + 2)):
        draw(f"{name}_emb.weight", n, HIDDEN, std=1.0)
        draw(f"{name}_head.weight", n, HIDDEN)
    draw("speech_head.bias", N_CODES + 2)
    # It speaks until the limit: a logit this low is never drawn.
    for part in ("weight", "bias"):
        weights[f"speech_head.{part}"][N_CODES:] = 0.0
    weights["speech_head.bias"][N_CODES:] = -20.0
    draw("cond_enc.spkr_enc.weight", HIDDEN, SPEAKER_SIZE)
    draw("cond_enc.spkr_enc.bias", HIDDEN)
    draw("tfmr.wte.weight", 8, HIDDEN)
    draw("tfmr.wpe.weight", N_POSITIONS, HIDDEN, std=0.5)
    for idx in range(N_LAYERS):
        stem = f"tfmr.h.{idx}"
        for part, n_in, n_out in (
            ("attn.c_attn", HIDDEN, 3 * HIDDEN),
            ("attn.c_proj", HIDDEN, HIDDEN),
            ("mlp.c_fc", HIDDEN, INNER),
            ("mlp.c_proj", INNER, HIDDEN),
        ):
            draw(f"{stem}.{part}.weight", n_in, n_out)
            draw(f"{stem}.{part}.bias", n_out)
        norm(f"{stem}.ln_1")
        norm(f"{stem}.ln_2")
    norm("tfmr.ln_f")
    return weights


def codec_weights(generator: torch.Generator, flow: SpeechFlow | None = None) -> dict[str, Tensor]:
    """Of `s3gen.safetensors`, or of Turbo's."""
    parts = {
        "tokenizer": speech_tokenizer_weights(),
        "speaker_encoder": camplus_weights(),
        "flow": drawn(flow or SpeechFlow(FLOW, Unet(UNET)), generator),
        "mel2wav": drawn(Hift(HIFT), generator),
    }
    parts["tokenizer"]["window"] = torch.hann_window(400)
    # A pitch that wanders between no voice and some 300 Hz.
    classifier = parts["mel2wav"]["f0_predictor.classifier.weight"]
    classifier.mul_(600.0 / classifier.std())
    # What is louder than the limit is cut off, and sounds like nothing else.
    parts["mel2wav"]["conv_post.weight"].mul_(0.2)
    return {
        f"{prefix}.{key}": tensor.contiguous()
        for prefix, weights in parts.items()
        for key, tensor in weights.items()
    }


def drawn(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of a module, by its keys: norms near 1, matrices that keep the size of what comes."""
    weights = {}
    for key, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if key.endswith("bias") or "pos_bias" in key:
            weights[key] = 0.1 * noise
        elif tensor.dim() == 1:
            weights[key] = 1.0 + 0.1 * noise
        else:
            weights[key] = noise / tensor[0].numel() ** 0.5
    return weights


def voice_encoder_weights(generator: torch.Generator) -> dict[str, Tensor]:
    """Of `ve.safetensors`."""
    lstm, size = nn.LSTM(40, 16, 2), 16
    weights = {
        f"lstm.{key}": 0.3 * torch.randn(tensor.shape, generator=generator)
        for key, tensor in lstm.state_dict().items()
    }
    weights["proj.weight"] = torch.randn(SPEAKER_SIZE, size, generator=generator)
    weights["proj.bias"] = torch.randn(SPEAKER_SIZE, generator=generator)
    weights["similarity_weight"] = torch.tensor([10.0])
    weights["similarity_bias"] = torch.tensor([-5.0])
    return weights


def make_tokenizer(path: Path, *more: str) -> None:
    """A tokenizer of single letters; its marks have the ids that the published ones have."""
    vocab = {f"<{n}>": n for n in range(N_MARKS)}
    for mark, idx in (("[STOP]", 0), ("[UNK]", 1), ("[SPACE]", 2), ("[START]", 255)):
        vocab.pop(f"<{idx}>")
        vocab[mark] = idx
    for letter in LETTERS:
        vocab[letter] = len(vocab)
    for mark in more:
        vocab[mark] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[STOP]", "[UNK]", "[SPACE]", "[START]", *more])
    tokenizer.save(str(path))


def make_byte_tokenizer(folder: Path) -> None:
    """Turbo's, of single bytes and sounds, in the files that GPT-2's has."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    (folder / "vocab.json").write_text(json.dumps({one: idx for idx, one in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = {
        str(len(letters) + idx): {"content": f"[{tag}]", "special": False}
        for idx, tag in enumerate(("laugh", "sigh"))
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def make_voice(seed: int, speaker_size: int = 256) -> Voice:
    """A voice as `conds.pt` holds one."""
    generator = torch.Generator().manual_seed(seed)
    n_tokens = 10
    speaker = torch.randn(speaker_size, generator=generator)
    return Voice(
        key=f"voice{seed}",
        speaker=nn.functional.normalize(speaker, dim=0),
        tokens=torch.randint(0, N_CODES, (20 + seed,), generator=generator),
        prompt_tokens=torch.randint(0, N_CODES, (n_tokens,), generator=generator),
        prompt_mel=torch.randn(2 * n_tokens, 80, generator=generator),
        embedding=torch.randn(192, generator=generator),
    )


def save_voice(path: Path, voice: Voice) -> None:
    """A voice in the form of `conds.pt`."""
    told = {
        "speaker_emb": voice.speaker[None],
        "clap_emb": None,
        "cond_prompt_speech_tokens": voice.tokens[None],
        "cond_prompt_speech_emb": None,
        "emotion_adv": torch.full((1, 1, 1), 0.5),
    }
    heard = {
        "prompt_token": voice.prompt_tokens[None],
        "prompt_token_len": torch.tensor([len(voice.prompt_tokens)]),
        "prompt_feat": voice.prompt_mel[None],
        "prompt_feat_len": None,
        "embedding": voice.embedding[None],
    }
    torch.save({"t3": told, "gen": heard}, path)


class SpellingCodec(nn.Module):
    """In place of the real one: the sound of a token is its number."""

    spec = CodecSpec(chunk_frames=(1, 2, 4, 8, 16, 32))

    def seed(self, voice: Voice) -> dict[str, Tensor]:
        return {}

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        pcm = frames[:, :, 0].float().repeat_interleave(SAMPLES_PER_FRAME, dim=1)
        return Decoded(pcm=pcm, n_samples=n_valid * SAMPLES_PER_FRAME, state={})

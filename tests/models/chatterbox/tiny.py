"""Small random Chatterbox checkpoint folders in the layout of the hub, and a codec that spells."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from models.base import Decoded
from models.chatterbox.config import MULTILINGUAL, SAMPLES_PER_FRAME
from models.chatterbox.voice import Voice
from models.spec import CodecSpec
from tests.parity.oracle import ask

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'-\"()"
N_MARKS = 260
"""Ids before the letters: the published tokenizers have their marks among the first."""


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


def make_voice(seed: int) -> Voice:
    """A voice as `conds.pt` holds one."""
    generator = torch.Generator().manual_seed(seed)
    n_tokens = 10
    return Voice(
        key=f"voice{seed}",
        speaker=torch.nn.functional.normalize(torch.randn(256, generator=generator), dim=0),
        tokens=torch.randint(0, 6561, (20 + seed,), generator=generator),
        prompt_tokens=torch.randint(0, 6561, (n_tokens,), generator=generator),
        prompt_mel=torch.randn(2 * n_tokens, 80, generator=generator),
        embedding=torch.randn(192, generator=generator),
    )


class SpellingCodec(torch.nn.Module):
    """In place of the real one: the sound of a token is its number."""

    spec = CodecSpec(chunk_frames=(1, 2, 4, 8, 16, 32))

    def seed(self, voice: Voice) -> dict[str, Tensor]:
        return {}

    def decode(self, frames, n_valid, state, is_first, is_last) -> Decoded:
        pcm = frames[:, :, 0].float().repeat_interleave(SAMPLES_PER_FRAME, dim=1)
        return Decoded(pcm=pcm, n_samples=n_valid * SAMPLES_PER_FRAME, state={})


def make_lms(folder: Path) -> Path:
    """The files of both LMs."""
    ask("chatterbox_lm", folder, apart="audio")
    return folder


def make_codec(folder: Path) -> Path:
    """The codec's file."""
    ask("chatterbox_codec", folder, apart="audio")
    return folder


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


def make_checkpoint(folder: Path) -> Path:
    """All files of the English model."""
    make_codec(make_lms(folder))
    ask("chatterbox_voice", folder, apart="audio")
    make_tokenizer(folder / "tokenizer.json")
    save_voice(folder / "conds.pt", make_voice(0))
    for path in folder.glob("t3_mtl*"):
        path.unlink()
    return folder


def make_multilingual_checkpoint(folder: Path) -> Path:
    """All files of the multilingual model, without the English one."""
    make_codec(make_lms(folder))
    ask("chatterbox_voice", folder, apart="audio")
    make_tokenizer(
        folder / "grapheme_mtl_merged_expanded_v1.json",
        *(f"[{language}]" for language in MULTILINGUAL),
    )
    save_voice(folder / "conds.pt", make_voice(0))
    (folder / "t3_cfg.safetensors").unlink()
    return folder

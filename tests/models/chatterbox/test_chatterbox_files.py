"""Chatterbox: files that fit in their names and not in what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.chatterbox import english
from models.errors import PlanError, WeightError
from models.spec import PlanRequest
from tests.models.chatterbox.tiny import N_TEXT_IDS, make_checkpoint, make_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("chatterbox"))


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """The same files; one may be replaced."""
    for path in checkpoint.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def replaced(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    (folder / name).unlink()
    write(folder / name)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("flow.encoder.encoders.0.self_attn.pos_bias_u", (0, 8)),
        ("mel2wav.conv_post.weight", (0, 4, 7)),
        ("tokenizer.encoder.conv1.weight", (0, 128, 3)),
        ("tokenizer.encoder.blocks.0.mlp.0.weight", ()),
        ("speaker_encoder.xvector.tdnn.linear.weight", ()),
    ],
)
def test_tensors_that_tell_no_size_are_named(folder, key, shape):
    """They ended in an IndexError, or in a division by zero."""
    tensors = load_file(folder / "s3gen.safetensors")
    assert key in tensors
    held = {**tensors, key: torch.ones(shape)}
    replaced(folder, "s3gen.safetensors", lambda path: save_file(held, path))
    with pytest.raises(WeightError, match=rf"{key.partition('.')[2]} of \({shape[:1] and '0'}"):
        english.load(folder)


def spoken(n: int, id_: int = 4) -> Tensor:
    return torch.full((1, n), id_)


@pytest.mark.parametrize(
    ("part", "change", "shown"),
    [
        ("t3", {"cond_prompt_speech_tokens": spoken(0)}, "0 numbers, must be 1 to 375 speech"),
        ("t3", {"cond_prompt_speech_tokens": spoken(9, -4)}, "9 numbers, must be 1 to 375 speech"),
        ("t3", {"cond_prompt_speech_tokens": spoken(400)}, "400 numbers, must be 1 to 375 speech"),
        ("gen", {"prompt_token": spoken(0), "prompt_feat": torch.ones(1, 0, 80)}, "0 numbers"),
        (
            "gen",
            {"prompt_feat": torch.ones(1, 20, 40)},
            r"gen\.prompt_feat of 40 numbers, must be 80",
        ),
        ("gen", {"embedding": torch.ones(1, 5)}, r"gen\.embedding of 5 numbers, must be 192"),
        ("gen", {"embedding": torch.full((1, 192), torch.nan)}, "with what is no number"),
    ],
)
def test_a_voice_that_could_not_speak_is_named(folder, part, change: Mapping, shown):
    """It was met by the first request, or it failed every one."""
    held = torch.load(folder / "conds.pt", weights_only=True)
    held[part] |= change
    replaced(folder, "conds.pt", lambda path: torch.save(held, path))
    with pytest.raises(WeightError, match=rf"conds\.pt has .*{shown}"):
        english.load(folder)


def test_text_without_rows_in_the_table_is_refused(folder):
    names = [f"[x{idx}]" for idx in range(N_TEXT_IDS)]
    replaced(folder, "tokenizer.json", lambda path: make_tokenizer(path, *names))
    model = english.load(folder)
    model.plan(PlanRequest(text="hello"))
    with pytest.raises(PlanError) as caught:
        model.plan(PlanRequest(text=f"hello {names[-1]}"))
    assert caught.value.code == "unsupported_characters"

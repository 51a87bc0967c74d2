"""Tensors in files: as they were saved, and loaded without a second copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.mapped import fill, give_back, map_safetensors, map_torch_file, own

MOST = 1.15
"""Peak of memory over the size of the model: one tensor more, and what torch itself needs."""

KINDS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    made = {str(kind): (torch.randn(3, 5) * 50).to(kind) for kind in KINDS}
    return {**made, "scalar": torch.tensor(2.5), "none": torch.zeros(0, 4)}


def test_a_safetensors_file_is_read_as_it_was_saved(tmp_path):
    save_file(_tensors(), tmp_path / "a.safetensors", metadata={"made": "here"})
    mapped = map_safetensors(tmp_path / "a.safetensors")
    give_back()
    assert mapped.keys() == _tensors().keys()
    for key, tensor in _tensors().items():
        assert mapped[key].dtype == tensor.dtype
        torch.testing.assert_close(mapped[key], tensor, rtol=0, atol=0)


def test_a_torch_file_is_read_as_it_was_saved(tmp_path):
    whole = torch.arange(24.0).view(4, 6)
    saved = {**_tensors(), "turned": whole.T, "part": whole[1:3, 2:4], "whole": whole}
    torch.save({"module": saved, "epoch": 3}, tmp_path / "a.pth")
    held = map_torch_file(tmp_path / "a.pth")
    give_back()
    assert held["epoch"] == 3
    for key, tensor in saved.items():
        torch.testing.assert_close(held["module"][key], tensor, rtol=0, atol=0)
    assert held["module"]["turned"].stride() == whole.T.stride()


def test_what_is_copied_stays_when_pages_are_given_back(tmp_path):
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "a.safetensors")
    mapped = map_safetensors(tmp_path / "a.safetensors")["a"]
    copy = own(mapped, torch.float32)
    copy += 1
    give_back()
    assert copy.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert mapped.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_parts_are_filled_in_one_after_another():
    target = torch.zeros(5, 2)
    fill(target, [torch.full((2, 2), 1.0), torch.full((3, 2), 2.0).bfloat16()])
    assert target[:, 0].tolist() == [1, 1, 2, 2, 2]
    scalar = torch.tensor(0.0)
    fill(scalar, [torch.tensor(3.0)])
    assert scalar == 3


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    _run("write", folder)
    return folder


def _run(form: str, folder: Path) -> list[int]:
    command = [sys.executable, "-m", "tests.models.loading", form, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("form", ["float32", "bfloat16", "torch"])
def test_a_checkpoint_is_loaded_without_a_second_copy(checkpoints, form):
    """Files were mapped and their tensors joined before they were copied: three times the size."""
    size, peak = _run(form, checkpoints)
    assert size > 100e6
    assert peak < MOST * size

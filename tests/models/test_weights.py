"""Weights load strictly, after a check of their bytes; every fault is one line with a remedy."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.errors import WeightError
from models.weights import Part, load_weights, read_manifest, read_tensors, verify_files


class Net(nn.Module):
    """Two layers and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(4, 2)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


def tensors() -> dict[str, torch.Tensor]:
    return {
        "first.weight": torch.arange(12.0).view(4, 3),
        "second.weight": torch.ones(2, 4),
        "second.bias": torch.tensor([5.0, 6.0]),
        "count": torch.tensor([7]),
    }


def failure(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(WeightError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]  # any of the functions under test
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(tensors(), tmp_path / "lm.safetensors")
    (tmp_path / "vocab.json").write_text('["a"]', encoding="utf-8")
    return tmp_path


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_all_tensors_are_copied_and_scratch_is_not_asked_for(folder: Path):
    net = Net()
    load_weights(net, read_tensors(folder / "lm.safetensors"), source="lm.safetensors")
    assert all(torch.equal(net.state_dict()[key], value) for key, value in tensors().items())


def test_half_precision_fits_a_float_module(folder: Path):
    net = Net()
    half = {k: v.half() if v.is_floating_point() else v for k, v in tensors().items()}
    load_weights(net, half, source="lm.safetensors")
    assert net.first.weight.dtype == torch.float32
    assert torch.equal(net.first.weight, tensors()["first.weight"])


def test_every_missing_unexpected_and_misshapen_key_is_listed():
    faulty = tensors()
    del faulty["second.bias"]
    faulty["third.weight"] = torch.zeros(1)
    faulty["first.weight"] = torch.zeros(3, 4)
    faulty["count"] = torch.zeros(1)
    message = failure(load_weights, Net(), faulty, source="lm.safetensors")
    assert "lm.safetensors does not fit Net" in message
    assert "missing: second.bias" in message
    assert "unexpected: third.weight" in message
    assert "first.weight is (3, 4), expected (4, 3)" in message
    assert "count is torch.float32, expected torch.int64" in message


def in_parts(*parts: torch.Tensor) -> list[Part]:
    """Of `first.weight`: three rows, then one."""
    names, rows = ("theirs.wide", "theirs.narrow"), (3, 1)
    return [
        Part(name=name, tensor=part, n_rows=n)
        for name, part, n in zip(names, parts, rows, strict=True)
    ]


def test_keys_are_named_as_the_file_has_them():
    faulty = {**tensors(), "first.weight": in_parts(torch.zeros(3, 3), torch.zeros(1, 2))}
    del faulty["second.bias"]
    faulty["stray"] = torch.zeros(1)
    names = {"first.weight": "never told", "second.bias": "theirs.bias"}
    message = failure(
        load_weights, Net(), faulty, source="lm.safetensors", names=names, prefix="net."
    )
    assert "missing: theirs.bias" in message
    assert "unexpected: net.stray" in message
    assert "theirs.narrow is (1, 2), expected (1, 3)" in message
    assert "theirs.wide" not in message, "that one fits"


def test_parts_lie_one_after_another():
    net = Net()
    whole = tensors()
    parts = in_parts(whole["first.weight"][:3], whole["first.weight"][3:].half())
    load_weights(net, {**whole, "first.weight": parts}, source="lm.safetensors")
    assert torch.equal(net.first.weight, whole["first.weight"])


def test_parts_that_only_together_have_the_right_size_are_refused():
    """Two rows of one and two of the other filled the four that are wanted, wrongly shared."""
    faulty = {**tensors(), "first.weight": in_parts(torch.zeros(2, 3), torch.zeros(2, 3))}
    message = failure(load_weights, Net(), faulty, source="lm.safetensors")
    assert "theirs.wide is (2, 3), expected (3, 3)" in message
    assert "theirs.narrow is (2, 3), expected (1, 3)" in message


@pytest.mark.parametrize(
    "part",
    [torch.zeros(()), torch.zeros(1), torch.zeros(1, 2, 3), torch.zeros(0, 3)],
    ids=lambda part: str(tuple(part.shape)),
)
def test_parts_of_another_shape_are_named(part):
    faulty = {**tensors(), "first.weight": in_parts(torch.zeros(3, 3), part)}
    message = failure(load_weights, Net(), faulty, source="lm.safetensors")
    assert f"theirs.narrow is {tuple(part.shape)}, expected (1, 3)" in message


def test_parts_of_another_kind_of_number_are_named():
    narrow = torch.zeros(1, 3, dtype=torch.int64)
    faulty = {**tensors(), "first.weight": in_parts(torch.zeros(3, 3), narrow)}
    message = failure(load_weights, Net(), faulty, source="lm.safetensors")
    assert "theirs.narrow is torch.int64, expected torch.float32" in message


def test_a_refused_file_leaves_the_module_as_it_was():
    net = Net()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    faulty = {**tensors(), "third.weight": torch.zeros(1)}
    failure(load_weights, net, faulty, source="lm.safetensors")
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())


def test_a_long_list_of_keys_is_cut():
    many = {**tensors(), **{f"extra{n:03}": torch.zeros(1) for n in range(200)}}
    message = failure(load_weights, Net(), many, source="lm.safetensors")
    assert "extra000" in message
    assert "and 192 more" in message
    assert len(message) < 400


def test_a_missing_file_is_named_with_a_remedy(tmp_path: Path):
    message = failure(read_tensors, tmp_path / "lm.safetensors")
    assert f"{tmp_path / 'lm.safetensors'} is missing" in message
    assert "install the package again" in message


@pytest.mark.parametrize("n_bytes", [0, 5, 60, -1])
def test_a_file_cut_short_is_named(folder: Path, n_bytes: int):
    path = folder / "lm.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    message = failure(read_tensors, path, remedy="run the recipe")
    assert "damaged or cut short" in message
    assert message.endswith("; run the recipe")


def test_a_pickle_is_not_opened(tmp_path: Path):
    path = tmp_path / "lm.safetensors"
    torch.save(tensors(), path)
    assert "damaged or cut short" in failure(read_tensors, path)


def test_a_git_lfs_pointer_is_told_apart(tmp_path: Path):
    path = tmp_path / "lm.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "run `git lfs pull`" in failure(read_tensors, path)


def test_files_that_match_the_manifest_pass(folder: Path):
    verify_files(folder, digests(folder))


def test_one_flipped_bit_is_found_before_use(folder: Path):
    manifest = digests(folder)
    path = folder / "lm.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    message = failure(verify_files, folder, manifest)
    assert "lm.safetensors is damaged or of another version" in message
    assert "vocab.json" not in message
    assert "install the package again" in message


def test_all_faulty_files_are_told_at_once(folder: Path):
    manifest = digests(folder)
    (folder / "lm.safetensors").unlink()
    (folder / "vocab.json").write_text("[]", encoding="utf-8")
    message = failure(verify_files, folder, manifest, remedy="run `git checkout -- models`")
    assert "lm.safetensors is missing" in message
    assert "vocab.json is damaged" in message
    assert message.endswith("; run `git checkout -- models`")


def test_a_manifest_has_the_form_of_sha256sum(folder: Path):
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    path = folder / "SHA256SUMS"
    path.write_text("".join(lines), encoding="utf-8")
    verify_files(folder, read_manifest(path))


@pytest.mark.parametrize("text", ["abc  lm.safetensors\n", f"{'0' * 64}\n", "\n"])
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "SHA256SUMS"
    path.write_text(text, encoding="utf-8")
    assert "line 1" in failure(read_manifest, path)


def test_a_missing_manifest_is_named(tmp_path: Path):
    assert str(tmp_path / "SHA256SUMS") in failure(read_manifest, tmp_path / "SHA256SUMS")

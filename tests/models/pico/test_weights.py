"""Weight files: what is refused before anything is computed from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from models.errors import WeightError
from models.pico import model
from models.pico.config import parse_config
from models.pico.units import UNITS
from models.pico.weights import MANIFEST, write_manifest
from tests.models.pico.harness import config_fields, random_weights


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the training recipe leaves it, with a small language model."""
    folder = tmp_path_factory.mktemp("weights")
    for stem, tensors in random_weights(parse_config(config_fields())).items():
        halves = {key: tensor.half().contiguous() for key, tensor in tensors.items()}
        save_file(halves, folder / f"{stem}.safetensors")
    (folder / "lm.json").write_text(json.dumps(config_fields()), encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps(list(UNITS)), encoding="utf-8")
    write_manifest(folder)
    return folder


@pytest.fixture
def folder(shipped: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    for path in shipped.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_whole_folder_loads_in_float32(shipped: Path) -> None:
    loaded = model.load(shipped)
    assert loaded.lm.table.dtype.is_floating_point
    assert loaded.lm.table.element_size() == 4
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_the_spec_needs_no_weights(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "lm.json").write_bytes((shipped / "lm.json").read_bytes())
    assert model.read_spec(tmp_path) == model.load(shipped).spec


def test_a_flipped_bit_is_found(folder: Path) -> None:
    path = folder / "post.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(WeightError, match=r"post\.safetensors"):
        model.load(folder)


@pytest.mark.parametrize("name", ["lm.safetensors", "vocab.json", "lm.json", MANIFEST])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(WeightError, match=name.replace(".", r"\.")):
        model.load(folder)


def test_another_layout_is_refused_with_the_keys(folder: Path) -> None:
    path = folder / "lm.safetensors"
    tensors = load_file(path)
    tensors["extra"] = tensors.pop("nf.w")
    tensors["ahead.weight"] = tensors["ahead.weight"][:4].contiguous()
    save_file(tensors, path)
    write_manifest(folder)
    with pytest.raises(WeightError) as caught:
        model.load(folder)
    for part in ("nf.w is missing", "extra is unexpected", "ahead.weight is (4, 32)"):
        assert part in str(caught.value)


def test_other_units_are_refused(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps(["a", *UNITS[1:]]), encoding="utf-8")
    write_manifest(folder)
    with pytest.raises(WeightError, match="units"):
        model.load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocoder", None), ("window", 3), ("S", 3), ("heads", 5), ("max_stay", ...)],
)
def test_a_config_that_contradicts_itself_is_refused(
    folder: Path, field: str, value: object
) -> None:
    fields = config_fields()
    if value is ...:
        del fields[field]
    else:
        fields[field] = value
    (folder / "lm.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(WeightError, match=r"lm\.json"):
        model.read_spec(folder)

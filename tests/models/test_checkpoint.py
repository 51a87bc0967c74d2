"""Published checkpoints: numbers that are there, whole files, weight norms in both spellings."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.checkpoint import (
    Config,
    fold_weight_norm,
    read_config,
    read_safetensors,
    read_torch_file,
    read_yaml,
    size_of,
    take,
)
from models.errors import WeightError


@pytest.fixture
def config() -> Config:
    values = {"n": 3, "x": 0.5, "is": True, "name": "a", "list": [1, 2], "in": {"n": "three"}}
    return Config(values, "config.json")


def test_numbers_are_what_the_file_states(config):
    assert config.integer("n") == 3
    assert config.number("x") == 0.5
    assert config.number("n") == 3.0
    assert config.flag("is") is True
    assert config.text("name") == "a"
    assert config.integers("list") == (1, 2)
    assert config.numbers("list") == (1.0, 2.0)
    assert config.optional("nothing") is None


@pytest.mark.parametrize(
    ("kind", "key", "shown"),
    [
        ("integer", "gone", "does not state gone"),
        ("integer", "x", "x = 0.5, must be a whole number"),
        ("integer", "is", "is = True"),
        ("number", "name", "name = 'a', must be a number"),
        ("flag", "n", "n = 3, must be true or false"),
        ("text", "n", "n = 3, must be a string"),
        ("integers", "n", "n = 3, must be a list"),
        ("numbers", "name", "name = 'a', must be a list of numbers"),
        ("part", "n", "n = 3, must be an object"),
    ],
)
def test_what_is_absent_or_of_another_kind_is_named(config, kind, key, shown):
    with pytest.raises(WeightError, match=r"config\.json") as caught:
        getattr(config, kind)(key)
    assert shown in str(caught.value)


def test_a_part_names_its_place(config):
    with pytest.raises(WeightError, match=r"in\.n = 'three'"):
        config.part("in").integer("n")


def test_a_contradiction_is_refused_and_silence_is_not(config):
    config.expect("gone", "anything")
    config.expect("name", "a")
    with pytest.raises(WeightError, match="name = 'a', must be 'b'"):
        config.expect("name", "b")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400), True])
def test_what_no_float_can_be_is_no_number(value):
    """JSON as Python reads it, and YAML, can state them."""
    config = Config({"x": value, "list": [0.5, value]}, "config.json")
    with pytest.raises(WeightError, match=r"x = .*, must be a number"):
        config.number("x")
    with pytest.raises(WeightError, match=r"list = .*, must be a list of numbers"):
        config.numbers("list")


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", 9000 * "["])
def test_a_file_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightError, match=r"config\.json"):
        read_config(tmp_path / "config.json")


def test_shards_come_together(tmp_path):
    parts = {"a": torch.ones(2), "b": torch.zeros(3)}
    save_file({"a": parts["a"]}, tmp_path / "one.safetensors")
    save_file({"b": parts["b"]}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    read = read_safetensors(tmp_path)
    assert read.keys() == parts.keys()
    assert all(torch.equal(read[key], parts[key]) for key in parts)


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors is missing"),
        ({"b": "one.safetensors"}, "lacks 'b'"),
        ({"a": "../one.safetensors"}, "outside of its folder"),
    ],
)
def test_an_index_that_lies(tmp_path, places, shown):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(WeightError, match=shown):
        read_safetensors(tmp_path)


def test_a_file_cut_short(tmp_path):
    save_file({"a": torch.ones(200)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])
    with pytest.raises(WeightError, match="damaged or cut short"):
        read_safetensors(tmp_path)
    with pytest.raises(WeightError, match="is missing"):
        read_torch_file(tmp_path / "gone.bin")


class Trap:
    """Runs when it is unpickled by a careless reader."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code from a checkpoint was run')",))


def test_a_torch_file_cannot_bring_code(tmp_path):
    torch.save({"a": Trap()}, tmp_path / "evil.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"a": Trap()}))
    torch.save({"a": [1, 2]}, tmp_path / "lists.pth")
    for name in ("evil.pth", "plain.pth", "lists.pth"):
        with pytest.raises(WeightError, match=name):
            read_torch_file(tmp_path / name)


def test_nobody_is_told_to_run_what_a_file_brings(tmp_path):
    """Torch says, in bold, how such a file is loaded by those who trust it."""
    torch.save({"a": Trap()}, tmp_path / "evil.pth")
    with pytest.raises(WeightError, match="neither tensors nor plain values") as caught:
        read_torch_file(tmp_path / "evil.pth")
    assert "trust" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("make", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize(
    "layer", [nn.Conv1d(3, 5, 7), nn.ConvTranspose1d(4, 2, 6, stride=3), nn.Conv1d(2, 2, 1)]
)
def test_weight_norms_are_folded_as_torch_computes_them(make, layer):
    n_in = layer.in_channels
    plain = layer.__class__(n_in, layer.out_channels, layer.kernel_size, layer.stride)
    normed = make(plain)
    with torch.no_grad():
        for parameter in normed.parameters():
            parameter.normal_()
    folded = fold_weight_norm({f"up.{key}": value for key, value in normed.state_dict().items()})
    assert sorted(folded) == ["up.bias", "up.weight"]
    x = torch.randn(1, n_in, 20)
    function = (
        nn.functional.conv_transpose1d
        if isinstance(layer, nn.ConvTranspose1d)
        else nn.functional.conv1d
    )
    got = function(x, folded["up.weight"], folded["up.bias"], stride=layer.stride)
    torch.testing.assert_close(got, normed(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 1), (4, 1, 1), (1, 3, 1, 1), (3,), ()])
@pytest.mark.parametrize(
    ("gain", "direction"),
    [
        ("weight_g", "weight_v"),
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ],
)
def test_a_gain_of_another_shape_is_named(gain, direction, shape):
    """Torch takes it as it is, and reads beyond one that is too short."""
    held = {f"a.{gain}": torch.ones(shape), f"a.{direction}": torch.ones(3, 2, 7)}
    with pytest.raises(WeightError, match=rf"a\.{gain} is .*, expected \(3, 1, 1\) beside a\."):
        fold_weight_norm(held)


@pytest.mark.parametrize("key", ["a.weight_g", "a.weight_v"])
def test_a_weight_norm_of_whole_numbers_is_named(key):
    """Quantised files hold such, and their scales elsewhere."""
    held = {"a.weight_g": torch.ones(3, 1, 1), "a.weight_v": torch.ones(3, 2, 7)}
    held[key] = held[key].to(torch.int8)
    with pytest.raises(WeightError, match=rf"{key} is torch\.int8, expected floats"):
        fold_weight_norm(held)


def test_half_precision_is_folded_as_well_as_float32_allows():
    held = {"a.weight_g": torch.rand(3, 1, 1), "a.weight_v": torch.randn(3, 400, 7)}
    low = {key: tensor.to(torch.bfloat16) for key, tensor in held.items()}
    folded = fold_weight_norm(low)["a.weight"]
    expected = fold_weight_norm({key: tensor.float() for key, tensor in low.items()})["a.weight"]
    assert folded.dtype == torch.float32
    assert torch.equal(folded, expected)


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (None, r"a is missing, expected \(2, 3\)"),
        (torch.ones(3, 2), r"a is \(3, 2\), expected \(2, 3\)"),
        (torch.ones(2, 3, dtype=torch.int8), r"a is torch\.int8, expected floats"),
        (torch.ones(2, 3, dtype=torch.complex64), r"a is torch\.complex64, expected floats"),
    ],
)
def test_a_tensor_that_is_none_of_floats_in_its_shape_is_named(tensor, shown):
    with pytest.raises(WeightError, match=f"model.pt: {shown}"):
        take({} if tensor is None else {"a": tensor}, "a", (2, 3), source="model.pt")


@pytest.mark.parametrize("shape", [None, (), (3,), (0, 4), (3, 0)])
def test_a_size_that_no_tensor_tells_is_named(shape):
    tensors = {} if shape is None else {"a": torch.ones(shape)}
    with pytest.raises(WeightError, match=r"model\.pt (lacks a|has a of \(.*\)): it is no voice"):
        size_of(tensors, "a", 1, source="model.pt", kind="voice")


def test_half_a_weight_norm_is_named():
    with pytest.raises(WeightError, match=r"a\.weight_g stands without a\.weight_v"):
        fold_weight_norm({"a.weight_g": torch.ones(2, 1, 1)})


def test_yaml_is_read_as_plain_values(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: dpo\nlist:\n- a\n- '<pad>'\nconf:\n  n: 3\n  is: true\n")
    config = read_yaml(path)
    assert config.text("model") == "dpo"
    assert config.part("conf").integer("n") == 3
    with pytest.raises(WeightError, match=r"config\.yaml does not state conf\.m"):
        config.part("conf").integer("m")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "is missing"),
        ("a: [1", "cannot be read"),
        ("- a", "holds no YAML mapping"),
        ("a: !!python/object/apply:os.getcwd []", "cannot be read"),
        ("a: " + 5000 * "[" + 5000 * "]", "cannot be read"),
    ],
)
def test_yaml_that_is_none_or_holds_objects_is_refused(tmp_path, content, shown):
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(WeightError, match=shown):
        read_yaml(path)


def test_a_state_dict_may_lie_under_module(tmp_path):
    torch.save({"module": {"a.weight": torch.ones(2)}}, tmp_path / "model.pth")
    assert list(read_torch_file(tmp_path / "model.pth")) == ["a.weight"]
    torch.save({"module": {"a.weight": torch.ones(2), "step": 3}}, tmp_path / "other.pth")
    with pytest.raises(WeightError, match="no plain state dict: step is of type int"):
        read_torch_file(tmp_path / "other.pth")

"""Files of HyperPyYAML: read as data, with nothing made or run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from models.errors import WeightError
from models.hyperpyyaml import MOST_BYTES, class_of, part_of, read_hyperpyyaml

TEXT = """
__set_seed: !apply:random.seed [1986]
rate: 25
ratio: 2
path: ''
llm: !new:package.llm.Model
    size: !ref <rate>
    product: !ref <rate> * <ratio> * 2
    inner: !new:package.Inner
        path: !ref <path>
        deep: [1, !ref <ratio>]
    sampling: !name:package.draw
        top_p: 0.8
bare: !new:package.Bare
twice: !ref <llm[inner]>
lines: [!ref <twice>, 3]
"""
NAMES = "abcdefg"
REFERENCES_TO_REFERENCES = "a: [1]\n" + "\n".join(
    f"{name}: [{', '.join(10 * [f'!ref <{before}>'])}]" for before, name in pairwise(NAMES)
)
ALIASES_OF_ALIASES = "a: &a [1]\n" + "\n".join(
    f"{name}: &{name} [{', '.join(10 * [f'*{before}'])}]" for before, name in pairwise(NAMES)
)
"""Some hundred bytes that stand for a million values."""


def write(folder: Path, text: str) -> Path:
    path = folder / "model.yaml"
    path.write_text(text)
    return path


def test_tags_are_names_and_references_are_followed(tmp_path):
    config = read_hyperpyyaml(write(tmp_path, TEXT))
    llm = config.part("llm")
    assert class_of(llm) == "Model"
    assert (llm.integer("size"), llm.integer("product")) == (25, 100)
    assert llm.part("inner").text("path") == ""
    assert llm.part("inner").integers("deep") == (1, 2)
    assert class_of(llm.part("sampling")) == "draw"
    assert class_of(config.part("bare")) == "Bare"
    assert class_of(config) == ""
    assert config.part("twice").values == llm.part("inner").values
    assert config.optional("lines") == [llm.part("inner").values, 3]
    assert config.optional("__set_seed") == [1986]


def test_another_class_is_refused_by_its_key(tmp_path):
    config = read_hyperpyyaml(write(tmp_path, TEXT))
    inner = part_of(part_of(config, "llm", "Model"), "inner", "Inner")
    assert inner.integers("deep") == (1, 2)
    with pytest.raises(WeightError, match=r"llm\.inner of class 'Inner', Outer is known"):
        part_of(config.part("llm"), "inner", "Outer")


def test_nothing_of_a_file_is_run(tmp_path):
    ran = tmp_path / "ran"
    text = f"a: !apply:pathlib.Path.touch [{ran}]\nb: !new:pathlib.Path\n    x: 1\n"
    read_hyperpyyaml(write(tmp_path, text))
    assert not ran.exists()
    with pytest.raises(WeightError, match="cannot be read"):
        read_hyperpyyaml(write(tmp_path, "a: !!python/object/apply:os.getcwd []"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a: !ref <b>", "refers to <b>"),
        ("a: !ref <b[c]>\nb: 3", r"refers to <b\[c\]>"),
        ("a: !ref <a>", "<a> refers to itself"),
        ("a: !ref <b>\nb: !ref <a>", "refers to itself"),
        ("a: !ref <b> * 2\nb: word", "products of numbers"),
        ("a: !ref <b> // 2\nb: 4", "products of numbers"),
        (REFERENCES_TO_REFERENCES, "stands for more than 100000 values"),
        (ALIASES_OF_ALIASES, "stands for more than 100000 values"),
        ("a: " + 5000 * "[" + 5000 * "]", "cannot be read"),
        ("- a", "no YAML mapping"),
        ("a: [", "cannot be read"),
        ("a: 1 #" + MOST_BYTES * " ", "more than"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, shown):
    with pytest.raises(WeightError, match=shown):
        read_hyperpyyaml(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeightError, match=r"absent\.yaml is missing"):
        read_hyperpyyaml(tmp_path / "absent.yaml")

"""HyperPyYAML files as plain values: what they would make is not made, nothing of them is run.

Checkpoints of the CosyVoice kind state their shape in such files: YAML with `!new:package.Class`
before a mapping of arguments, and `!ref <name>` where a value stands elsewhere. Here a tagged
mapping is a mapping that has its tag under `TAG`, and references are followed.

Source: speechbrain/HyperPyYAML 1.2, README.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from models.checkpoint import REMEDY, Config
from models.errors import WeightError

TAG: Final = "!"
"""Key of a mapping's tag, which is `new:package.Class`, `name:package.function` or the like."""
MOST_BYTES: Final = 1 << 20
MOST_VALUES: Final = 100_000
"""When references are followed; a published file has some hundreds. A few lines of references to
references can stand for more than any memory holds."""
_NAME: Final = re.compile(r"<([^<>]+)>")


@dataclass(frozen=True, slots=True)
class _Ref:
    """A reference: `<name>`, `<name[key]>`, or a product of numbers and such."""

    text: str


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library states no types
    """A safe loader: plain values, and tags as data."""


def _tagged(loader: _Loader, suffix: str, node: yaml.Node) -> Any:  # noqa: ANN401  any value
    if isinstance(node, yaml.MappingNode):
        return {**loader.construct_mapping(node, deep=True), TAG: suffix}
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode), "YAML has no fourth kind"
    text = loader.construct_scalar(node)
    # A class without arguments is a scalar that is empty.
    return _Ref(str(text)) if suffix in ("ref", "copy") else {TAG: suffix}


_Loader.add_multi_constructor("!", _tagged)


def read_hyperpyyaml(path: Path) -> Config:
    """The values of a file. Raises: `WeightError`: missing, damaged, a reference to nothing."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise WeightError(f"{path} has more than {MOST_BYTES} bytes: this is no such file")
        # A safe loader, see above.
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise WeightError(f"{path} is missing; {REMEDY}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise WeightError(f"{path} cannot be read ({reason}); {REMEDY}") from None
    if not isinstance(values, dict):
        raise WeightError(f"{path} holds no YAML mapping; {REMEDY}")
    try:
        return Config(_Resolver(values, path.name).resolved(values), path.name)
    except RecursionError:
        raise WeightError(f"{path} cannot be read (nested too deep); {REMEDY}") from None


def class_of(config: Config) -> str:
    """Name of the class that a tagged mapping is for, without its package; empty: not tagged."""
    return str(config.values.get(TAG, "")).rpartition(".")[2]


def part_of(config: Config, key: str, kind: str) -> Config:
    """What a class is made with, of a mapping within. Raises: `WeightError`: of another class."""
    part = config.part(key)
    if class_of(part) != kind:
        raise WeightError(
            f"{config.source} has {config.prefix}{key} of class {class_of(part)!r}, "
            f"{kind} is known here"
        )
    return part


class _Resolver:
    """Follows the references of a file."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source
        self._open: list[str] = []
        self._n_values = 0

    def resolved(self, value: Any) -> Any:  # noqa: ANN401  any value
        """`value` without references."""
        self._n_values += 1
        if self._n_values > MOST_VALUES:
            raise WeightError(f"{self._source} stands for more than {MOST_VALUES} values; {REMEDY}")
        if isinstance(value, dict):
            return {key: self.resolved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.resolved(one) for one in value]
        return self._meant(value.text.strip()) if isinstance(value, _Ref) else value

    def _meant(self, text: str) -> Any:  # noqa: ANN401  any value
        whole = _NAME.fullmatch(text)
        if whole is not None:
            return self._named(whole[1])
        factors = [self._factor(part.strip()) for part in text.split("*")]
        return math.prod(factors)

    def _factor(self, text: str) -> float:
        name = _NAME.fullmatch(text)
        value = self._named(name[1]) if name is not None else _number(text)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WeightError(
                f"{self._source}: !ref {text} is {value!r:.80}; products of numbers are known here"
            )
        return value

    def _named(self, name: str) -> Any:  # noqa: ANN401  any value
        if name in self._open:
            raise WeightError(f"{self._source}: <{name}> refers to itself; {REMEDY}")
        value: Any = self._values
        for key in re.split(r"[\[\]]+", name.rstrip("]")):
            if not isinstance(value, dict) or key not in value:
                raise WeightError(f"{self._source} refers to <{name}>, which it does not state")
            value = value[key]
        self._open.append(name)
        meant = self.resolved(value)
        self._open.pop()
        return meant


def _number(text: str) -> float | str:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text

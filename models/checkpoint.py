"""Published checkpoints from disk: `config.json` or YAML, safetensors, `.bin` and `.pth` files.

Numbers come from the checkpoint's own files; one that is absent or of another kind is a
`WeightError` that names its key. torch files are read with `weights_only`: they can hold no code.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor, nn

from models.errors import WeightError
from models.mapped import map_safetensors, map_torch_file, own

try:
    from yaml import CSafeLoader as YamlLoader
except ImportError:  # a build without libyaml: the same, ten times as slow
    from yaml import SafeLoader as YamlLoader

REMEDY: Final = "fetch the checkpoint's files again"
SAFETENSORS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


class TaggedYamlError(WeightError):
    """A YAML file holds tags: it describes objects of a program, and is none of plain values."""


@dataclass(frozen=True, slots=True)
class Config:
    """The numbers of a JSON or YAML file, each checked when it is asked for.

    Args:
        values: the object.
        source: the file, for messages.
        prefix: where the object stands in the file.
    """

    values: Mapping[str, Any]
    source: str
    prefix: str = ""

    def optional(self, key: str) -> Any:  # noqa: ANN401  whatever the file holds
        """The value, or None where it is absent or null."""
        return self.values.get(key)

    def integer(self, key: str) -> int:
        """A whole number. Raises: `WeightError`."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._unfit(key, value, "a whole number")
        return value

    def count(self, key: str) -> int:
        """A whole number of things that there must be, 1 at least. Raises: `WeightError`."""
        value = self.integer(key)
        if value < 1:
            raise self._unfit(key, value, "1 or more")
        return value

    def divisor(self, key: str, of: int) -> int:
        """A count into which another number is parted. Raises: `WeightError`."""
        value = self.count(key)
        if of % value:
            raise self._unfit(key, value, f"a divisor of {of}")
        return value

    def number(self, key: str) -> float:
        """A number. Raises: `WeightError`."""
        value = self._get(key)
        if not _is_number(value):
            raise self._unfit(key, value, "a number")
        return float(value)

    def positive(self, key: str) -> float:
        """A number above 0. Raises: `WeightError`."""
        value = self.number(key)
        if value <= 0:
            raise self._unfit(key, value, "above 0")
        return value

    def flag(self, key: str) -> bool:
        """True or false. Raises: `WeightError`."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._unfit(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        """A string. Raises: `WeightError`."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self._unfit(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, not empty. Raises: `WeightError`."""
        value = self._get(key)
        if not isinstance(value, list) or not value or any(type(one) is not int for one in value):
            raise self._unfit(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, not empty. Raises: `WeightError`."""
        value = self._get(key)
        if not isinstance(value, list) or not value or not all(map(_is_number, value)):
            raise self._unfit(key, value, "a list of numbers")
        return tuple(float(one) for one in value)

    def part(self, key: str) -> Config:
        """An object within. Raises: `WeightError`."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._unfit(key, value, "an object")
        return Config(value, self.source, f"{self.prefix}{key}.")

    def expect(self, key: str, value: object) -> None:
        """Refuse a checkpoint that states something else; absent is no contradiction.

        Raises:
            WeightError: it does.
        """
        found = self.values.get(key, value)
        if found != value:
            raise self._unfit(key, found, f"{value!r}: nothing else is known here")

    def _get(self, key: str) -> Any:  # noqa: ANN401  whatever the file holds
        if self.values.get(key) is None:
            raise WeightError(f"{self.source} does not state {self.prefix}{key}; {REMEDY}")
        return self.values[key]

    def _unfit(self, key: str, value: object, wanted: str) -> WeightError:
        shown = repr(value)[:80]
        return WeightError(f"{self.source} has {self.prefix}{key} = {shown}, must be {wanted}")


def _is_number(value: object) -> bool:
    """Neither what is not a number, nor beyond all floats: JSON and YAML can state both."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def read_config(path: Path) -> Config:
    """A JSON object. Raises: `WeightError`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightError(f"{path} is missing; {REMEDY}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise WeightError(f"{path} cannot be read ({error}); {REMEDY}") from None
    if not isinstance(values, dict):
        raise WeightError(f"{path} holds no JSON object; {REMEDY}")
    return Config(values, path.name)


def read_yaml(path: Path) -> Config:
    """A YAML mapping of plain values, as ESPnet writes them.

    Raises:
        TaggedYamlError: it holds tags.
        WeightError: it is missing, damaged, or no mapping.
    """
    try:
        # A safe loader: plain values, no objects.
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=YamlLoader)
    except FileNotFoundError:
        raise WeightError(f"{path} is missing; {REMEDY}") from None
    except yaml.constructor.ConstructorError as error:
        raise TaggedYamlError(f"{path} cannot be read ({error.problem}); {REMEDY}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise WeightError(f"{path} cannot be read ({reason}); {REMEDY}") from None
    if not isinstance(values, dict):
        raise WeightError(f"{path} holds no YAML mapping; {REMEDY}")
    return Config(values, path.name)


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder with one file or an index of shards; memory-mapped, on the CPU.

    Raises:
        WeightError: a file is missing or damaged, or a shard lacks what the index promises.
    """
    if not (folder / INDEX).is_file():
        return _read_shard(folder / SAFETENSORS, None)
    return read_safetensors_index(folder, INDEX)


def read_safetensors_index(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of the shards that an index names, as `read_safetensors`."""
    index = folder / name
    if index.name != name:
        raise WeightError(f"config.json names an index outside of its folder: {name!r}")
    places: dict[str, list[str]] = {}
    for key, file in read_config(index).part("weight_map").values.items():
        places.setdefault(str(file), []).append(key)
    tensors: dict[str, Tensor] = {}
    for file, keys in sorted(places.items()):
        if Path(file).name != file:
            raise WeightError(f"{index.name} names a file outside of its folder: {file!r}")
        tensors |= _read_shard(folder / file, keys)
    return tensors


def read_torch_file(path: Path, part: str = "module") -> dict[str, Tensor]:
    """A state dict of a `.bin`, `.pt` or `.pth` file; memory-mapped, on the CPU.

    Args:
        path: of the file.
        part: under which the state dict lies, where it is not the whole content (`module`:
            DeepSpeed).

    Raises:
        WeightError: missing, damaged, with something else than tensors in it.
    """
    if not path.is_file():
        raise WeightError(f"{path} is missing; {REMEDY}")
    try:
        held = map_torch_file(path)
    # torch raises what its parsers raise: zip, pickle and runtime errors.
    except Exception as error:
        raise unreadable(path, "weights", error) from error
    if isinstance(held, dict) and isinstance(held.get(part), dict):
        held = held[part]
    if not isinstance(held, dict):
        raise WeightError(f"{path} holds no plain state dict; {REMEDY}")
    other = [key for key, one in held.items() if not isinstance(one, Tensor)]
    if other:
        what = f"{other[0]} is of type {type(held[other[0]]).__name__}"
        raise WeightError(f"{path} holds no plain state dict: {what}; {REMEDY}")
    return held


def unreadable(path: Path, wanted: str, error: Exception) -> WeightError:
    """That a torch file cannot be read as what it should be, in a line.

    Of one that holds objects torch itself tells how to load it all the same, which runs them.
    """
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, pickle.UnpicklingError):
        reason = "it is damaged, or holds what is neither tensors nor plain values"
    return WeightError(f"{path} cannot be read as {wanted} ({reason}); {REMEDY}")


def take(weights: dict[str, Tensor], key: str, shape: tuple[int, ...], *, source: str) -> Tensor:
    """One tensor out of what is left of a checkpoint, as it lies there.

    Args:
        weights: what is left; it is taken out.
        key: of the tensor.
        shape: that it must have.
        source: the file, for messages.

    Raises:
        WeightError: it is missing, of another shape, or none of floats.
    """
    tensor = weights.pop(key, None)
    if tensor is None or tuple(tensor.shape) != shape:
        found = "is missing" if tensor is None else f"is {tuple(tensor.shape)}"
        raise WeightError(f"{source}: {key} {found}, expected {shape}; {REMEDY}")
    if not tensor.is_floating_point():
        raise WeightError(f"{source}: {key} is {tensor.dtype}, expected floats; {REMEDY}")
    return tensor


def size_of(tensors: Mapping[str, Tensor], key: str, axis: int, *, source: str, kind: str) -> int:
    """How long a tensor is along an axis, for models whose files state their shape by nothing else.

    Args:
        tensors: of the file.
        key: of the tensor.
        axis: that is asked for.
        source: the file, for messages.
        kind: what it would be of, for messages.

    Raises:
        WeightError: the tensor is missing, has no such axis, or is empty; it is named.
    """
    tensor = tensors.get(key)
    if tensor is None:
        raise WeightError(f"{source} lacks {key}: it is no {kind}")
    if tensor.dim() <= axis or not tensor.numel():
        raise WeightError(f"{source} has {key} of {tuple(tensor.shape)}: it is no {kind}")
    return tensor.shape[axis]


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in place of weight-normed pairs, in both spellings: `g * v / |v|`, in float32.

    `weight_g`, `weight_v`, or `parametrizations.weight.original0`, `...original1`; the norm is over
    all axes but the first. Source: Salimans and Kingma 2016, equation 2.

    Raises:
        WeightError: one of a pair is missing or holds no floats, or they do not go together.
    """
    folded = dict(tensors)
    for gain, direction in (
        ("weight_g", "weight_v"),
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ):
        for key in [key for key in folded if key.endswith(f".{gain}")]:
            stem = key.removesuffix(gain)
            v = folded.pop(f"{stem}{direction}", None)
            if v is None:
                raise WeightError(f"{key} stands without {stem}{direction}; {REMEDY}")
            g = folded.pop(key)
            # NOTE: torch reads beyond a gain that is too short, and says nothing.
            shape = (*v.shape[:1], *(1 for _ in v.shape[1:]))
            if g.shape != shape or not shape:
                expected = f"expected {shape} beside {stem}{direction}"
                raise WeightError(f"{key} is {tuple(g.shape)}, {expected}; {REMEDY}")
            for name, tensor in ((key, g), (f"{stem}{direction}", v)):
                if not tensor.is_floating_point():
                    raise WeightError(f"{name} is {tensor.dtype}, expected floats; {REMEDY}")
            folded[f"{stem}weight"] = torch._weight_norm(v.float(), g.float(), 0)
    return folded


def as_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of queries or keys made for neighbours `(2i, 2i + 1)`, put in order for halves.

    Args:
        weight: `(heads * head_dim, n)`.
        head_dim: channels of a head.
    """
    pairs = weight.view(-1, head_dim // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


class Taker:
    """Takes tensors out of a checkpoint, each of the shape that it must have, in float32.

    Args:
        weights: what is left of it.
        source: the file, for messages.

    Raises:
        WeightError: a tensor is missing, of another shape, or none of floats.
    """

    def __init__(self, weights: dict[str, Tensor], source: str) -> None:
        self._weights = weights
        self._source = source

    def __call__(self, key: str, *shape: int) -> nn.Parameter:
        """One tensor."""
        tensor = take(self._weights, key, shape, source=self._source)
        return nn.Parameter(own(tensor, torch.float32), requires_grad=False)

    def linear(self, stem: str, n_in: int, n_out: int) -> nn.Linear:
        """A layer with a bias."""
        layer = nn.Linear(n_in, n_out, device="meta")
        layer.weight, layer.bias = self(f"{stem}.weight", n_out, n_in), self(f"{stem}.bias", n_out)
        return layer


def _read_shard(path: Path, keys: list[str] | None) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightError(f"{path} is missing; {REMEDY}")
    try:
        tensors = map_safetensors(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightError(f"{path} is damaged or cut short ({error}); {REMEDY}") from error
    lacking = sorted(set(keys or ()) - tensors.keys())
    if lacking:
        raise WeightError(f"{path.name} lacks {lacking[0]!r}, which the index puts there")
    return {key: tensors[key] for key in sorted(keys or tensors)}

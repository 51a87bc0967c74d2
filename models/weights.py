"""Weights from disk: checksums before use, safetensors only, strict loading.

Any doubt is a `WeightError` of one line that names the file and says what to do. Nothing is
downloaded here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from models.errors import WeightError
from models.mapped import fill, map_safetensors

REMEDY = "install the package again or fetch the files again"
_MAX_LISTED = 8
_MANIFEST_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
_LFS_POINTER = b"version https://git-lfs"


def read_manifest(path: Path) -> dict[str, str]:
    """File names and their SHA-256 from a file in the form of `sha256sum`.

    Raises:
        WeightError: no such file, or a line of another form.
    """
    lines = _read_text(path).splitlines()
    manifest: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = _MANIFEST_LINE.fullmatch(line)
        if match is None:
            raise WeightError(f"{path} line {number} is not `sha256  name`; {REMEDY}")
        manifest[match[2]] = match[1]
    return manifest


def verify_files(folder: Path, manifest: Mapping[str, str], *, remedy: str = REMEDY) -> None:
    """Check that every file of `manifest` (name to SHA-256) is in `folder` and is unchanged.

    Raises:
        WeightError: all faulty files in one line.
    """
    faults = [
        f"{name} {fault}"
        for name, digest in sorted(manifest.items())
        if (fault := _file_fault(folder / name, digest))
    ]
    if faults:
        raise WeightError(f"weights in {folder}: {_listed(faults)}; {remedy}")


def read_tensors(path: Path, *, remedy: str = REMEDY) -> dict[str, Tensor]:
    """Tensors of a safetensors file, mapped (see `models.mapped`).

    Raises:
        WeightError: missing, not readable, cut short, or of another format.
    """
    if not path.is_file():
        raise WeightError(f"{path} is missing; {remedy}")
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
        if is_pointer:
            raise WeightError(f"{path} is a Git LFS pointer, not the file; run `git lfs pull`")
        return map_safetensors(path)
    except (SafetensorError, OSError, ValueError) as error:
        n_bytes = path.stat().st_size
        message = f"{path} ({n_bytes} bytes) is damaged or cut short: {_first_line(error)}"
        raise WeightError(f"{message}; {remedy}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor of a file that becomes some rows of one of ours, behind those of the part before it.

    Args:
        name: what the file calls it.
        tensor: itself.
        n_rows: that it must have.
    """

    name: str
    tensor: Tensor
    n_rows: int


def load_weights(
    module: nn.Module,
    tensors: Mapping[str, Tensor | Sequence[Part]],
    *,
    source: str,
    names: Mapping[str, str] | None = None,
    prefix: str = "",
) -> None:
    """Copy `tensors` into `module`, all of them and nothing else; its dtype and device stay.

    One after another, each cast on its way: no second copy of the model is ever there.

    Args:
        module: its parameters and persistent buffers are what is expected.
        tensors: by key, whole or in parts. Floats may have another precision.
        source: where they came from, for the message.
        names: what the file calls a key of the module, where that is something else.
        prefix: what stands before all other keys in the file.

    Raises:
        WeightError: keys that are missing, unexpected, misshapen or of another kind of number, all
            listed. The module is unchanged then.
    """
    expected = module.state_dict()
    called = {key: prefix + key for key in (*expected, *tensors)} | dict(names or {})
    missing = sorted(called[key] for key in expected.keys() - tensors.keys())
    unexpected = sorted(called[key] for key in tensors.keys() - expected.keys())
    common = sorted(expected.keys() & tensors.keys())
    unfit = [fault for key in common for fault in _unfit(called[key], tensors[key], expected[key])]
    parts = [
        f"{what}: {_listed(keys)}"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("unfit", unfit))
        if keys
    ]
    if parts:
        message = f"{source} does not fit {type(module).__name__}: {'; '.join(parts)}"
        raise WeightError(f"{message}; the file is of another model or version")
    with torch.no_grad():
        for key, target in expected.items():
            fill(target, [part.tensor for part in _parts(key, tensors[key], target)])


def _parts(name: str, held: Tensor | Sequence[Part], target: Tensor) -> Sequence[Part]:
    if not isinstance(held, Tensor):
        return held
    return [Part(name=name, tensor=held, n_rows=len(target) if target.dim() else 0)]


def _unfit(name: str, held: Tensor | Sequence[Part], target: Tensor) -> list[str]:
    """What is wrong with the tensors of one key."""
    parts = _parts(name, held, target)
    n_rows = sum(part.n_rows for part in parts)
    assert target.dim() == 0 or n_rows == len(target), f"parts of {name} make a whole of it"
    faults = []
    for part in parts:
        shape = (part.n_rows, *target.shape[1:]) if target.dim() else ()
        if part.tensor.shape != shape:
            faults.append(f"{part.name} is {tuple(part.tensor.shape)}, expected {shape}")
        elif part.tensor.is_floating_point() != target.is_floating_point():
            faults.append(f"{part.name} is {part.tensor.dtype}, expected {target.dtype}")
    return faults


def _file_fault(path: Path, digest: str) -> str:
    """What is wrong with one file; empty if nothing."""
    if not path.is_file():
        return "is missing"
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read ({_first_line(error)})"
    if found == digest:
        return ""
    size = f"{path.stat().st_size} bytes"
    return f"is damaged or of another version ({size}, SHA-256 {found[:12]}, not {digest[:12]})"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightError(f"cannot read {path} ({_first_line(error)}); {REMEDY}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")

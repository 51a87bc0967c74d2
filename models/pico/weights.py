"""The files of `pico`: what they must hold, how they are checked, and the list of their checksums.

`python -m models.pico.weights` writes the list anew after the files were made anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from models.errors import WeightError
from models.pico.config import N_ADVANCES, N_STAYS, WEIGHTS, PicoConfig
from models.pico.units import UNITS
from models.weights import read_manifest, read_tensors, verify_files

MANIFEST: Final = "SHA256SUMS"
"""In the form of `sha256sum`, so that it can be checked without this program."""

_DATA_SUFFIXES: Final = (".safetensors", ".json", ".gz")

Shapes = dict[str, tuple[int, ...]]


def read_weights(folder: Path, config: PicoConfig) -> dict[str, dict[str, Tensor]]:
    """All tensors in float32, by file stem (`lm`, `post`, `codec`, `vocoder`) and key.

    Raises:
        WeightError: a file is missing, changed, or of another layout.
    """
    verify_files(folder, read_manifest(folder / MANIFEST))
    _check_units(folder, config)
    return {
        stem: _read_file(folder / f"{stem}.safetensors", shapes)
        for stem, shapes in expected_shapes(config).items()
    }


def empty_weights(config: PicoConfig) -> dict[str, dict[str, Tensor]]:
    """Uninitialised tensors of the right shapes: for the facts that follow from shapes alone."""
    return {
        stem: {key: torch.empty(shape) for key, shape in shapes.items()}
        for stem, shapes in expected_shapes(config).items()
    }


def write_manifest(folder: Path) -> int:
    """Write the checksums of all files of data in `folder`; how many there are."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _DATA_SUFFIXES)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / MANIFEST).write_text("".join(lines), encoding="utf-8")
    return len(files)


def expected_shapes(config: PicoConfig) -> dict[str, Shapes]:
    """Shape of every tensor, by file stem and key."""
    return {
        "lm": _lm_shapes(config),
        "post": _post_shapes(config),
        "codec": _codec_shapes(config),
        "vocoder": _vocoder_shapes(config),
    }


def _lm_shapes(config: PicoConfig) -> Shapes:
    hidden, units = config.hidden, config.n_units
    shapes: Shapes = {"temb.weight": (units, hidden), "semb.weight": (N_STAYS, hidden)}
    shapes |= {f"wemb.{j}.weight": (units, hidden) for j in range(len(config.window))}
    for book in range(config.n_books):
        shapes[f"cemb.{book}.weight"] = (config.n_codes + 1, hidden)
        shapes[f"heads.{book}.weight"] = (config.n_codes, hidden)
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        shapes |= {f"{block}.{norm}.w": (hidden,) for norm in ("n1", "n2")}
        shapes[f"{block}.qkv.weight"] = (3 * hidden, hidden)
        shapes[f"{block}.o.weight"] = (hidden, hidden)
        shapes[f"{block}.gu.weight"] = (2 * config.inner, hidden)
        shapes[f"{block}.dn.weight"] = (hidden, config.inner)
    return shapes | {"nf.w": (hidden,), "ahead.weight": (N_ADVANCES, hidden)}


def _post_shapes(config: PicoConfig) -> Shapes:
    post = config.post
    n_in = len(config.window) * post.unit_dim + post.stay_dim + post.dims + config.n_books
    shapes: Shapes = {
        "uemb.weight": (config.n_units, post.unit_dim),
        "semb.weight": (N_STAYS, post.stay_dim),
        "C": (config.n_books, config.n_codes + 1, post.dims),
        "sc": (),
        "inp.weight": (post.width, n_in),
        "inp.bias": (post.width,),
        "nf": (post.width,),
        "out.weight": (post.dims, post.width),
        "out.bias": (post.dims,),
    }
    for idx in range(len(post.dilation)):
        block = f"blocks.{idx}"
        shapes |= {f"{block}.{name}": (post.width,) for name in ("n", "a.bias", "b.bias")}
        shapes[f"{block}.a.weight"] = (post.width, post.width, post.kernel)
        shapes[f"{block}.b.weight"] = (post.width, post.width, 1)
    return shapes


def _codec_shapes(config: PicoConfig) -> Shapes:
    latents = config.latents
    stacked = latents.frames * latents.latent
    return {
        "P": (stacked, latents.dims),
        "mu": (stacked,),
        "Li": (latents.latent, latents.latent),
        "zm": (latents.latent,),
    }


def _vocoder_shapes(config: PicoConfig) -> Shapes:
    vocoder = config.vocoder
    width = vocoder.width
    shapes: Shapes = {
        "conv_pre.weight": (width, config.latents.latent, vocoder.edge_kernel),
        "conv_pre.bias": (width,),
    }
    for stage, (_, kernel) in enumerate(vocoder.ups):
        shapes[f"ups.{stage}.weight"] = (width, width // 2, kernel)
        width //= 2
        shapes[f"ups.{stage}.bias"] = (width,)
        for place, res_kernel in enumerate(vocoder.res_kernels):
            block = f"resblocks.{stage * len(vocoder.res_kernels) + place}"
            for conv in range(len(vocoder.res_dilations[place])):
                shapes[f"{block}.convs.{conv}.weight"] = (width, width, res_kernel)
                shapes[f"{block}.convs.{conv}.bias"] = (width,)
    return shapes | {"conv_post.weight": (1, width, vocoder.edge_kernel)}


def _read_file(path: Path, shapes: Shapes) -> dict[str, Tensor]:
    tensors = read_tensors(path)
    check_layout(tensors, shapes, path.name)
    return {key: tensor.float() for key, tensor in tensors.items()}


def check_layout(tensors: Mapping[str, Tensor], shapes: Shapes, source: str) -> None:
    """Hold tensors against what is expected.

    Raises:
        WeightError: missing, unexpected or misshapen keys, all listed.
    """
    faults = [f"{key} is missing" for key in sorted(shapes.keys() - tensors.keys())]
    faults += [f"{key} is unexpected" for key in sorted(tensors.keys() - shapes.keys())]
    faults += [
        f"{key} is {tuple(tensors[key].shape)}, expected {shape}"
        for key, shape in shapes.items()
        if key in tensors and tuple(tensors[key].shape) != shape
    ]
    if faults:
        raise WeightError(f"{source} does not fit lm.json: {'; '.join(faults)}")


def _check_units(folder: Path, config: PicoConfig) -> None:
    """The units that the weights were trained on must be those of the text front."""
    path = folder / "vocab.json"
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightError(f"cannot read {path}: {error}; restore the file") from error
    if names != list(UNITS) or config.n_units != len(UNITS):
        raise WeightError(f"{path} does not name the units of models.pico.units: retrain")


def main(arguments: list[str]) -> int:
    """Write the list of checksums for a folder (by default that of this package)."""
    folder = Path(arguments[0]) if arguments else WEIGHTS
    n_files = write_manifest(folder)
    sys.stdout.write(f"{folder / MANIFEST}: {n_files} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

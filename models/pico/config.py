"""The shape of `pico`, read from `lm.json` beside its weights. No torch.

Field by field this is the first part of `models/pico/training/FORMAT.md`; nothing here is a choice
of the run time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models.errors import WeightError
from models.spec import SamplingParams

WEIGHTS: Final = Path(__file__).parent / "weights"
CONFIG_FILE: Final = "lm.json"

N_ADVANCES: Final = 5
MAX_ADVANCE: Final = 3
END: Final = 4
"""Advance ids: 0 stays at the unit, 1..3 move the pointer on, 4 ends the utterance."""

STAY_CAP: Final = 15
STAY_ENDED: Final = 16
N_STAYS: Final = 17
"""Stay ids: steps spent at the unit so far, capped; the last id stands for "ended"."""

MAX_UNITS: Final = 298
"""Longest text of a stream: with bos and boa, the longest prompt of the training data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostnetConfig:
    """Post-net: `width` channels, `dims` values out a step; one entry a block in the tuples."""

    width: int
    unit_dim: int
    stay_dim: int
    dims: int
    kernel: int
    dilation: tuple[int, ...]
    ahead: tuple[int, ...]

    @property
    def lookahead_steps(self) -> int:
        """Steps after a step that its output depends on."""
        return sum(self.ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Latents: `frames` of `latent` values a step, from `dims` values."""

    frames: int
    latent: int
    dims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderConfig:
    """HiFi-GAN: `hop` samples a latent frame; `ups` are (stride, kernel) of each stage.

    `width` (channels after the first convolution, halved by each stage) and `edge_kernel` (of the
    first and last convolution) are those of the teacher and not in the file.
    """

    sample_rate: int
    hop: int
    ups: tuple[tuple[int, int], ...]
    res_kernels: tuple[int, ...]
    res_dilations: tuple[tuple[int, ...], ...]
    width: int = 256
    edge_kernel: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PicoConfig:
    """The whole model: letters as in FORMAT.md where they are not spelled out."""

    n_units: int
    n_books: int
    n_codes: int
    hidden: int
    n_layers: int
    n_heads: int
    inner: int
    max_stay: int
    window: tuple[int, ...]
    advance_sampling: SamplingParams
    code_sampling: tuple[SamplingParams, ...]
    post: PostnetConfig
    latents: LatentConfig
    vocoder: VocoderConfig

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.n_heads

    @property
    def absent_code(self) -> int:
        """Code id of "no code here"."""
        return self.n_codes

    @property
    def step_samples(self) -> int:
        """PCM samples of one step."""
        return self.latents.frames * self.vocoder.hop


def read_config(folder: Path) -> PicoConfig:
    """Read `lm.json`.

    Raises:
        WeightError: missing, no JSON, or a field is missing or of the wrong kind.
    """
    path = folder / CONFIG_FILE
    try:
        return parse_config(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightError(
            f"cannot read {path}: {type(error).__name__}: {error}; restore the file"
        ) from error


def parse_config(fields: Mapping[str, Any]) -> PicoConfig:
    """Make the config from the parsed JSON. Raises: `KeyError`, `TypeError`, `ValueError`."""
    post, codec, vocoder = fields["post"], fields["codec"], fields["vocoder"]
    config = PicoConfig(
        n_units=fields["vocab"],
        n_books=fields["S"],
        n_codes=fields["K"],
        hidden=fields["d"],
        n_layers=fields["L"],
        n_heads=fields["heads"],
        inner=fields["ff"],
        max_stay=fields["max_stay"],
        window=tuple(fields["window"]),
        advance_sampling=_sampling(fields["sampling"]["advance"]),
        code_sampling=tuple(_sampling(book) for book in fields["sampling"]["codes"]),
        post=PostnetConfig(
            width=post["width"],
            unit_dim=post["unit_dim"],
            stay_dim=post["stay_dim"],
            dims=post["dims"],
            kernel=post["kernel"],
            dilation=tuple(post["dilation"]),
            ahead=tuple(post["ahead"]),
        ),
        latents=LatentConfig(frames=codec["frames"], latent=codec["latent"], dims=codec["dims"]),
        vocoder=VocoderConfig(
            sample_rate=vocoder["sample_rate"],
            hop=vocoder["hop"],
            ups=tuple((stride, kernel) for stride, kernel in vocoder["ups"]),
            res_kernels=tuple(vocoder["res_kernels"]),
            res_dilations=tuple(tuple(pair) for pair in vocoder["res_dilations"]),
        ),
    )
    _check(config)
    return config


def _sampling(fields: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(temperature=float(fields["temperature"]), top_k=int(fields["top_k"]))


def _check(config: PicoConfig) -> None:
    """Refuse sizes that contradict each other."""
    hop = 1
    for stride, kernel in config.vocoder.ups:
        hop *= stride
        if kernel < stride or (kernel - stride) % 2:
            raise ValueError(f"upsampling kernel {kernel} does not fit stride {stride}")
    if hop != config.vocoder.hop:
        raise ValueError(f"vocoder strides give {hop} samples a frame, not {config.vocoder.hop}")
    if len(config.code_sampling) != config.n_books:
        raise ValueError(f"{len(config.code_sampling)} code samplings for {config.n_books} books")
    if config.latents.dims != config.post.dims:
        raise ValueError(f"post-net gives {config.post.dims} values, codec {config.latents.dims}")
    if len(config.post.dilation) != len(config.post.ahead):
        raise ValueError("post-net dilation and ahead differ in length")
    if config.hidden % config.n_heads:
        raise ValueError(f"hidden {config.hidden} is no multiple of {config.n_heads} heads")

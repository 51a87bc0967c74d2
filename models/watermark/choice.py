"""Which model gets which mark, as an operator asks for it. No torch: the command reads this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from models.errors import WatermarkError
from models.hub import Needs, Part
from models.spec import ModelSpec

PUBLISHED: Final = "44_1_khz/73999_iteration"
"""Where sony/silentcipher has the weights for 44.1 kHz; those for 16 kHz spell no bytes."""
MESSAGE_BYTES: Final = 5
"""What SilentCipher spells."""
CSM_MESSAGE: Final = "d4d39238c9"
"""What marks speech of CSM: public, so that everybody can find it. In hexadecimal digits.
Source: SesameAILabs/csm, `watermarking.py`."""


def needs(folder: Path) -> Needs:
    """What is fetched of a repository of the hub: SilentCipher's weights, and none to find marks.

    `models.hub.fetch` asks with a folder of configs, which say nothing about marks.
    """
    weights = ("enc_c.ckpt", "dec_c.ckpt")
    return Needs(weights=(), parts=(Part(folder=PUBLISHED, weights=weights),))


def assigned(asked: Sequence[str], specs: Mapping[str, ModelSpec]) -> dict[str, str]:
    """Which model gets which mark.

    Args:
        asked: `PLACE`, for all models that speak, or `MODEL=PLACE`.
        specs: of the models that are served, by the name that they are asked for by.

    Returns:
        Places by the same names.

    Raises:
        WatermarkError: a model is not served, gives no sound, or has two marks; or none speaks.
    """
    places: dict[str, str] = {}
    named = [one.partition("=") for one in asked if "=" in one]
    for model, _, place in named:
        found = [name for name, spec in specs.items() if model in (name, spec.name)]
        if not found:
            served = ", ".join(spec.name for spec in specs.values())
            raise WatermarkError(
                f"--watermark {model}={place}: {model} is not served, but {served}"
            )
        for name in found:
            _check_speaks(specs[name])
            _put(places, name, place, specs[name])
    for place in (one for one in asked if "=" not in one):
        speaking = [name for name, spec in specs.items() if gives_sound(spec)]
        if not speaking:
            raise WatermarkError(f"--watermark {place}: no model that is served gives sound")
        for name in speaking:
            if not any(model in (name, specs[name].name) for model, *_ in named):
                _put(places, name, place, specs[name])
    return places


def gives_sound(spec: ModelSpec) -> bool:
    """Whether a model has something to mark."""
    return any(phase.feeds_codec for phase in spec.phases)


def _check_speaks(spec: ModelSpec) -> None:
    if not gives_sound(spec):
        raise WatermarkError(f"--watermark: {spec.name} gives no sound that could be marked")


def _put(places: dict[str, str], name: str, place: str, spec: ModelSpec) -> None:
    if name in places:
        raise WatermarkError(
            f"--watermark: {spec.name} would be marked by {places[name]} and by {place}; give one"
        )
    places[name] = place

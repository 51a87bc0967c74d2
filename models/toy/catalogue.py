"""All toys by name."""

from __future__ import annotations

from collections.abc import Callable

from models.base import SpeechModel
from models.spec import ModelSpec
from models.toy import audio_in, delayed, depth, faulty, interleaved, mixed, streamed, tone


def _load_faulty() -> SpeechModel:
    return faulty.FaultyModel(delayed.load(), name="toy-faulty")


TOYS: dict[str, tuple[ModelSpec, Callable[[], SpeechModel]]] = {
    "toy-tone": (tone.SPEC, tone.load),
    "toy-interleaved": (interleaved.SPEC, interleaved.load),
    "toy-delayed": (delayed.SPEC, delayed.load),
    "toy-depth": (depth.SPEC, depth.load),
    "toy-mixed": (mixed.SPEC, mixed.load),
    "toy-audio-in": (audio_in.SPEC, audio_in.load),
    "toy-streamed": (streamed.SPEC, streamed.load),
    "toy-faulty": (faulty.faulty_spec(delayed.SPEC, name="toy-faulty"), _load_faulty),
}

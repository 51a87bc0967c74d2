"""Names that OpenAI clients send without having chosen them. Pure values."""

from __future__ import annotations

from typing import Final

from models.spec import ModelSpec

OPENAI_VOICES: Final = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx"),
        *("sage", "shimmer", "verse"),
    )
)
"""Source: OpenAI API reference, `voice` of `POST /v1/audio/speech` and of realtime sessions."""
OPENAI_SPEECH_MODELS: Final = frozenset(
    ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
)
"""Source: as above, `model`."""


def own_voice(asked: str | None, spec: ModelSpec) -> str | None:
    """The voice as the model knows it: a name of OpenAI's means the default (None).

    A model's own voice of that name goes first. What neither knows comes back as it is, for the
    check of settings to refuse.
    """
    is_placeholder = asked in OPENAI_VOICES and asked not in spec.voices
    return None if is_placeholder else asked

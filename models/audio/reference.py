"""Reference audio: a recording of the voice that a model is to speak with. Worker threads.

The one way in for all families. A client sends a file in the option `reference_audio`, a program in
the same process gives samples as `PlanRequest.audio`; both are checked in `models.audio.sound`.
Where a family hears, samples are what the user says (`models.audio.spoken`), and a voice is a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from models.audio.recordings import KINDS
from models.audio.sound import Sound, SoundReader
from models.errors import PlanError
from models.spec import OptionSpec, OptionValue, PlanRequest

LEAST_S: Final = 1.0
MOST_S: Final = 30.0
MAX_FILES: Final = 16
"""Of which the samples are kept, 3 MB each."""

REFERENCE_AUDIO: Final = OptionSpec(
    name="reference_audio",
    kind="audio",
    default=None,
    description=f"the voice to speak with: {LEAST_S:g} to {MOST_S:g} s of one person; "
    f"a file ({KINDS}) in base64",
)
REFERENCE_TEXT: Final = OptionSpec(
    name="reference_text",
    kind="string",
    default=None,
    description="the words of the reference audio",
)

Reference = Sound
"""A voice to speak with."""

_READER: Final = SoundReader(REFERENCE_AUDIO.name, least_s=LEAST_S, n_kept=MAX_FILES)


def read_reference(
    request: PlanRequest, options: Mapping[str, OptionValue], rate_hz: int
) -> Reference | None:
    """The reference audio of a request at `rate_hz`; None where there is none.

    Args:
        request: may hold it as samples.
        options: checked; may hold it as a file.
        rate_hz: at which the family takes it.

    Raises:
        PlanError: `invalid_audio` (no sound file, no numbers), `empty_file`, `no_audio` (a file
            without sound), `empty_audio` (silence), `audio_too_short`, `audio_too_long`,
            `invalid_reference` (both ways at once).
    """
    if request.audio is None:
        return read_reference_file(options, rate_hz)
    if options.get(REFERENCE_AUDIO.name) is not None:
        raise _READER.refused("invalid_reference", "is given twice, as a file and as samples")
    return _READER.of_samples(request.audio, request.audio_rate_hz or rate_hz, rate_hz, MOST_S)


def read_reference_file(options: Mapping[str, OptionValue], rate_hz: int) -> Reference | None:
    """The same for a family that hears: samples are not the voice. Raises: `PlanError`."""
    file = options.get(REFERENCE_AUDIO.name)
    return None if file is None else _READER.of_file(str(file), rate_hz, MOST_S)


def reference_words(options: Mapping[str, OptionValue], reference: Reference | None) -> str | None:
    """The words of the reference audio, stripped; None where none are given.

    Raises:
        PlanError: `invalid_reference`: words without audio.
    """
    words = str(options.get(REFERENCE_TEXT.name) or "").strip()
    if words and reference is None:
        message = f"{REFERENCE_TEXT.name} is given without {REFERENCE_AUDIO.name}"
        raise PlanError("invalid_reference", message, REFERENCE_TEXT.name)
    return words or None

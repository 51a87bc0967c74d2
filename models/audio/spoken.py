"""Spoken input: what the user says to a model that hears. Worker threads.

The one way in for all families that hear. A conversation gives samples as `PlanRequest.audio`, a
client of the other lanes a file in the option `input_audio`; both come out alike. A family states
how much it takes (`spoken_option`), and batches what it hears by `models.audio.batches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from models.audio.recordings import KINDS
from models.audio.sound import Sound, SoundReader
from models.spec import SPOKEN_INPUT, OptionSpec, OptionValue, PlanRequest

MOST_S: Final = 300.0
"""That any family takes."""
N_FILES: Final = 4
"""Of which the samples are kept, up to 19 MB each."""
NAME: Final = SPOKEN_INPUT

_READER: Final = SoundReader(NAME, least_s=0.0, n_kept=N_FILES)


def spoken_option(most_s: float) -> OptionSpec:
    """The option of a family that hears, which takes so many seconds."""
    assert 0 < most_s <= MOST_S, "longer input is told in pieces"
    return OptionSpec(
        name=NAME,
        kind="audio",
        default=None,
        description=f"what the user says: at most {most_s:g} s; a file ({KINDS}) in base64",
    )


def read_spoken(
    request: PlanRequest, options: Mapping[str, OptionValue], rate_hz: int, *, most_s: float
) -> Sound | None:
    """What the user said, at `rate_hz`; None where nothing is given.

    Args:
        request: may hold it as samples.
        options: checked; may hold it as a file.
        rate_hz: at which the family hears.
        most_s: that the family takes, with the silence around it.

    Raises:
        PlanError: of `input_audio`: `invalid_audio` (no sound file, no numbers), `empty_file`,
            `no_audio` (a file without sound), `empty_audio` (silence, no samples),
            `audio_too_long`, `invalid_value` (both ways at once).
    """
    file = options.get(NAME)
    if request.audio is None:
        return None if file is None else _READER.of_file(str(file), rate_hz, most_s)
    if file is not None:
        raise _READER.refused("invalid_value", "is given twice, as a file and as samples")
    return _READER.of_samples(request.audio, request.audio_rate_hz or rate_hz, rate_hz, most_s)

"""Who comes and what they hear: open-loop arrivals, and a client that plays at once."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from loadtest.simulate.device import Profile

_EXACT_S = 1e-9
"""Two sums of the same seconds differ by rounding; a gap is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request: when it comes, how long its prompt and its speech are.

    `leaves_after_s`: the client hangs up then. `is_paced`: somebody listens while it is made.
    """

    at_s: float
    n_prompt_rows: int
    n_frames: int
    leaves_after_s: float = math.inf
    is_paced: bool = True


def poisson(profile: Profile, rate_hz: float, duration_s: float, seed: int) -> list[Arrival]:
    """Arrivals that never wait for replies, until `duration_s`."""
    draw = random.Random(seed)
    arrivals = []
    now_s = draw.expovariate(rate_hz)
    while now_s < duration_s:
        arrivals.append(_arrival(profile, now_s, draw))
        now_s += draw.expovariate(rate_hz)
    return arrivals


def at_once(profile: Profile, n_texts: int, seed: int) -> list[Arrival]:
    """Offline work: so many texts at time 0, to which nobody listens."""
    draw = random.Random(seed)
    return [_arrival(profile, 0.0, draw, is_paced=False) for _ in range(n_texts)]


def _arrival(
    profile: Profile, at_s: float, draw: random.Random, *, is_paced: bool = True
) -> Arrival:
    speech = profile.speech
    # The mean of a lognormal is exp(mu + sigma^2 / 2).
    mu = math.log(speech.mean_s) - speech.sigma**2 / 2
    n_frames = max(1, round(draw.lognormvariate(mu, speech.sigma) / profile.frame_spec.frame_s))
    return Arrival(
        at_s=at_s, n_prompt_rows=speech.n_prompt_rows, n_frames=n_frames, is_paced=is_paced
    )


class Listener:
    """Plays what it gets from the first chunk on, with nothing kept in reserve.

    Args:
        arrival: what it asked for.

    Attributes:
        is_refused: it was not served.
        ttfa_s: from asking to the first chunk; infinite until then.
        n_late: chunks that came after the audio before them had been heard.
        gap_s: silence that these made.
        ended_s: when the last chunk came; infinite until then.
        chunk_frames: frames of audio of each chunk.
    """

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.is_refused = False
        self.ttfa_s = math.inf
        self.n_late = 0
        self.gap_s = 0.0
        self.ended_s = math.inf
        self.chunk_frames: list[int] = []
        self._dry_s = math.inf

    def hear(self, n_frames: int, frame_s: float, now_s: float) -> None:
        """Take a chunk."""
        self.chunk_frames.append(n_frames)
        if self.ttfa_s == math.inf:
            self.ttfa_s = now_s - self.arrival.at_s
            self._dry_s = now_s
        late_s = now_s - self._dry_s
        if late_s > _EXACT_S and n_frames:
            self.n_late += 1
            self.gap_s += late_s
        self._dry_s = max(self._dry_s, now_s) + n_frames * frame_s

    def is_clean(self, bound_s: float) -> bool:
        """Heard to the end, the first sound within `bound_s`, and no late chunk."""
        return self.ended_s < math.inf and self.ttfa_s <= bound_s and self.n_late == 0

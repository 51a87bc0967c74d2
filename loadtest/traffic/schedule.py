"""When callers come and what each will do: all of it drawn before the run, by seed. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass

from loadtest.traffic.scenarios import Part, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One caller.

    Args:
        number: from 0, in order of arrival.
        at_s: when it comes, from the start of the run.
        part: what it does.
        seed: of everything that it draws.
    """

    number: int
    at_s: float
    part: Part
    seed: int


def poisson_calls(
    scenario: Scenario, rate_per_s: float, duration_s: float, seed: int
) -> list[Call]:
    """Callers of a Poisson process: gaps are exponential, and nobody waits for anybody.

    The same seed gives the same calls, whatever the server does; a longer run begins with the calls
    of a shorter one.
    """
    random_source = random.Random(seed)
    calls: list[Call] = []
    at_s = 0.0
    while True:
        at_s += random_source.expovariate(rate_per_s)
        part = scenario.pick(random_source.random())
        call_seed = random_source.getrandbits(32)
        if at_s >= duration_s:
            return calls
        calls.append(Call(number=len(calls), at_s=at_s, part=part, seed=call_seed))

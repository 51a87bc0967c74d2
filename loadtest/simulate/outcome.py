"""What came out of simulated runs: figures of one run, and the bars that they are held to. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.simulate.clients import Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy at one rate with one seed; streams that came in the measured window.

    Args:
        policy: who decided.
        rate_hz: offered, on average.
        seed: of arrivals and noise.
        n_offered: streams that asked.
        n_refused: of these, turned away at once.
        n_clean: heard to the end, first sound within the bound, no late chunk.
        n_late: served streams with a late chunk.
        n_slow: served streams whose first sound came after the bound, or never.
        gap_s: silence that late chunks made, in all streams together.
        ttfa_ms: of served streams, at 50, 90, 95 and 99 %; None: longer than the run.
        goodput_hz: clean streams a second.
    """

    policy: str
    rate_hz: float
    seed: int
    n_offered: int
    n_refused: int
    n_clean: int
    n_late: int
    n_slow: int
    gap_s: float
    ttfa_ms: dict[str, float | None]
    goodput_hz: float


def figures_of(
    listeners: Sequence[Listener],
    *,
    policy: str,
    rate_hz: float,
    seed: int,
    bound_s: float,
    window_s: float,
) -> Figures:
    """Count what the listeners of a window of `window_s` heard."""
    served = [listener for listener in listeners if not listener.is_refused]
    n_clean = sum(listener.is_clean(bound_s) for listener in served)
    ttfas_s = [listener.ttfa_s for listener in served]
    return Figures(
        policy=policy,
        rate_hz=rate_hz,
        seed=seed,
        n_offered=len(listeners),
        n_refused=len(listeners) - len(served),
        n_clean=n_clean,
        n_late=sum(listener.n_late > 0 for listener in served),
        n_slow=sum(ttfa_s > bound_s for ttfa_s in ttfas_s),
        gap_s=sum(listener.gap_s for listener in served),
        ttfa_ms={f"p{percent}": _ms(percentile(ttfas_s, percent)) for percent in (50, 90, 95, 99)},
        goodput_hz=n_clean / window_s,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed; infinite if there is none."""
    ranked = sorted(values)
    if not ranked:
        return math.inf
    return ranked[min(len(ranked) - 1, math.ceil(percent / 100 * len(ranked)) - 1)]


def _ms(seconds: float) -> float | None:
    return 1000 * seconds if seconds < math.inf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One policy at one rate, the mean over seeds; `None` as in `Figures`."""

    policy: str
    rate_hz: float
    goodput_hz: float
    p50_ms: float | None
    p90_ms: float | None
    clean_share: float
    refused_share: float
    n_late: int


def points_of(figures: Sequence[Figures]) -> list[Point]:
    """Means over seeds, in the order of first appearance."""
    groups: dict[tuple[str, float], list[Figures]] = {}
    for one in figures:
        groups.setdefault((one.policy, one.rate_hz), []).append(one)
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Figures]) -> Point:
    n_offered = sum(one.n_offered for one in group)
    n_refused = sum(one.n_refused for one in group)
    return Point(
        policy=group[0].policy,
        rate_hz=group[0].rate_hz,
        goodput_hz=sum(one.goodput_hz for one in group) / len(group),
        p50_ms=_mean_ms([one.ttfa_ms["p50"] for one in group]),
        p90_ms=_mean_ms([one.ttfa_ms["p90"] for one in group]),
        clean_share=sum(one.n_clean for one in group) / max(1, n_offered - n_refused),
        refused_share=n_refused / max(1, n_offered),
        n_late=sum(one.n_late for one in group),
    )


def _mean_ms(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A promise, what was measured, and whether it holds."""

    name: str
    asked: str
    measured: str
    is_met: bool


def best(points: Sequence[Point], policy: str) -> Point:
    """The point of most goodput."""
    return max((p for p in points if p.policy == policy), key=lambda point: point.goodput_hz)


def bars_of(points: Sequence[Point], at_80: Sequence[Point], at_200: Sequence[Point]) -> list[Bar]:
    """Hold `ours` to `reference`.

    Args:
        points: the sweep.
        at_80: both policies at 80 % of the rate at which the reference does best.
        at_200: `ours` at twice that rate.
    """
    ours, reference = best([*points, *at_200], "ours"), best(points, "reference")
    calm = {point.policy: point for point in at_80}
    over = at_200[0]
    ratio = ours.goodput_hz / reference.goodput_hz
    kept = over.goodput_hz / ours.goodput_hz
    return [
        _ttfa_bar(calm["ours"], calm["reference"]),
        Bar(
            name="late streams there",
            asked="0",
            measured=str(calm["ours"].n_late),
            is_met=calm["ours"].n_late == 0,
        ),
        Bar(
            name="best goodput",
            asked=f">= 1.3 x {reference.goodput_hz:.2f}/s",
            measured=f"{ours.goodput_hz:.2f}/s ({ratio:.2f} x)",
            is_met=ratio >= 1.3,
        ),
        Bar(
            name=f"goodput at {over.rate_hz:g}/s",
            asked=">= 95 % of own best",
            measured=f"{over.goodput_hz:.2f}/s ({kept:.0%})",
            is_met=kept >= 0.95,
        ),
        Bar(
            name="clean among admitted there",
            asked=">= 99 %",
            measured=f"{over.clean_share:.1%}",
            is_met=over.clean_share >= 0.99,
        ),
    ]


def _ttfa_bar(ours: Point, reference: Point) -> Bar:
    measured, theirs = ours.p90_ms, reference.p90_ms
    return Bar(
        name=f"p90 TTFA at {ours.rate_hz:g}/s",
        asked=f"<= half of {theirs:.0f} ms" if theirs else "<= half",
        measured=f"{measured:.0f} ms" if measured else "-",
        is_met=measured is not None and theirs is not None and measured <= theirs / 2,
    )

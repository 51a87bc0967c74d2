"""Finds the largest rate at which a server still keeps a promise, by runs at several rates.

The rate is doubled until a run fails, then the gap between the best that passed and the least that
failed is halved (by the geometric mean) until it is small. Each rate has its own warm-up, and the
server has come to rest before the next. With several seeds a rate passes when each of them does.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.measure.spread import Figures

MAX_DOUBLINGS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a run must keep to pass.

    Args:
        percent: of first audible samples; one of 50, 90, 95, 99.
        ttfa_ms: bound of that percentile for spoken texts.
        answer_ms: the same for answers.
        clean_pct: of streams that must have no underrun.
        prebuffer_ms: of the listener.
        served_pct: of streams that must be neither refused nor in error.
    """

    percent: int = 95
    ttfa_ms: float = 500.0
    answer_ms: float = 1500.0
    clean_pct: float = 99.0
    prebuffer_ms: int = 0
    served_pct: float = 99.0

    def breaches(self, figures: Mapping[str, Figures]) -> list[str]:
        """What a run's figures break; empty: it passes."""
        found = [] if figures else ["no stream was measured"]
        for kind, one in figures.items():
            bound_ms = self.ttfa_ms if kind == "speech" else self.answer_ms
            ttfa_ms = one[f"ttfa_audible_p{self.percent}_ms"]
            if ttfa_ms is None or ttfa_ms + self.prebuffer_ms > bound_ms:
                found.append(f"{kind}: p{self.percent} of first sound {_ms(ttfa_ms)}")
            gaps_pct = one[f"underruns_{self.prebuffer_ms}ms_streams_pct"]
            if gaps_pct is None or gaps_pct > 100.0 - self.clean_pct:
                found.append(f"{kind}: gaps in {_pct(gaps_pct)} of streams")
            lost_pct = (one["refused_pct"] or 0.0) + (one["errors_pct"] or 0.0)
            if lost_pct > 100.0 - self.served_pct:
                found.append(f"{kind}: {_pct(lost_pct)} of streams refused or in error")
        return found

    def words(self) -> str:
        """The promise in one line."""
        return (
            f"p{self.percent} of the first audible sample <= {self.ttfa_ms:g} ms (answers "
            f"{self.answer_ms:g} ms), {self.clean_pct:g} % of streams without an underrun at "
            f"{self.prebuffer_ms} ms prebuffer, {self.served_pct:g} % served"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to look.

    Args:
        low: the first rate that is tried.
        high: no larger one is.
        tolerance: the answer may be short of the truth by this share.
        seeds: of the runs at each rate; the first that fails decides.
    """

    low: float
    high: float
    tolerance: float
    seeds: Sequence[int] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The end of a search.

    Args:
        best: the largest rate that passed; None: not even the lowest did.
        failed: the lowest rate that failed; None: the search ended at its upper end.
        tried: rates in the order of trial, and whether each passed.
    """

    best: float | None
    failed: float | None
    tried: Sequence[tuple[float, bool]]


async def find_largest(passes: Callable[[float], Awaitable[bool]], search: Search) -> Found:
    """The largest rate that passes, as far as `search` goes."""
    tried: list[tuple[float, bool]] = []

    async def attempt(rate: float) -> bool:
        is_good = await passes(rate)
        tried.append((rate, is_good))
        return is_good

    best: float | None = None
    failed: float | None = None
    rate = search.low
    for _ in range(MAX_DOUBLINGS):
        if not await attempt(rate):
            failed = rate
            break
        best = rate
        if rate >= search.high:
            break
        rate = min(2 * rate, search.high)
    while best is not None and failed is not None and failed / best > 1 + search.tolerance:
        middle = _rounded(math.sqrt(best * failed))
        if not best < middle < failed:
            break
        if await attempt(middle):
            best = middle
        else:
            failed = middle
    return Found(best=best, failed=failed, tried=tried)


def _rounded(rate: float) -> float:
    """Three digits: nobody reads more of a rate."""
    return float(f"{rate:.3g}")


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} ms"


def _pct(value: float | None) -> str:
    return "all" if value is None else f"{value:.1f} %"

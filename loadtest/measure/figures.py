"""The figures of a run, of its streams. No I/O.

Times and gaps are those of streams that were listened to (`StreamRecord.listened`); what a slow
reader or a client that left would have heard is nobody's experience, and shows in what it does to
the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from loadtest.measure.playout import PREBUFFERS_MS
from loadtest.measure.spread import Figures, share_pct, spread
from loadtest.measure.streams import ERRORS, Kind, Outcome, StreamRecord

MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """By when the first sound must be heard, in ms, for a stream to be good.

    Args:
        ttfa_ms: of a spoken text, from its first text sent.
        answer_ms: of an answer, from the question's last sound.
    """

    ttfa_ms: float = 500.0
    answer_ms: float = 1500.0

    def of(self, kind: Kind) -> float:
        """The bound of one kind of stream, in s."""
        return (self.ttfa_ms if kind == "speech" else self.answer_ms) / MS


def figures_of(
    records: Sequence[StreamRecord], duration_s: float, bounds: Bounds
) -> dict[str, Figures]:
    """Figures of each kind of stream that was there.

    Args:
        records: of the streams asked for in the measured time.
        duration_s: of the measured time.
        bounds: of good streams.
    """
    kinds: tuple[Kind, ...] = get_args(Kind)
    by_kind = {kind: [one for one in records if one.kind == kind] for kind in kinds}
    return {
        kind: {
            **_counts(found, duration_s),
            **_times(found),
            **_gaps(found),
            **_viability(found),
            **_goodput(found, duration_s, bounds.of(kind)),
        }
        for kind, found in by_kind.items()
        if found
    }


def _counts(records: Sequence[StreamRecord], duration_s: float) -> Figures:
    counts = Counter(one.outcome for one in records)
    n_errors = sum(counts[outcome] for outcome in ERRORS)
    outcomes: tuple[Outcome, ...] = get_args(Outcome)
    return {
        "n_streams": len(records),
        **{f"n_{outcome}": counts[outcome] for outcome in outcomes},
        "offered_per_s": len(records) / duration_s,
        "refused_pct": share_pct(counts["refused"], len(records)),
        "errors_pct": share_pct(n_errors, len(records)),
        "audio_s_per_s": sum(o.heard.audio_s for o in records if o.heard) / duration_s,
    }


def _times(records: Sequence[StreamRecord]) -> Figures:
    return {
        **spread("connect", _known(one.connect_s for one in records), "ms", MS),
        **spread("ttfa_packet", _known(one.first_packet_in_s for one in records), "ms", MS),
        **spread("ttfa_audible", _known(one.first_sound_in_s for one in records), "ms", MS),
        **spread("real_time_factor", _known(one.real_time_factor for one in records), "ratio"),
        **spread("cancel_to_silence", _known(o.cancel_to_silence_s for o in records), "ms", MS),
        **spread("cancel_to_done", _known(o.cancel_to_done_s for o in records), "ms", MS),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _gaps(records: Sequence[StreamRecord]) -> Figures:
    figures: Figures = {}
    for ms in PREBUFFERS_MS:
        found = [one.listened.listening[ms] for one in records if one.listened is not None]
        n_with = sum(one.n_underruns > 0 for one in found)
        figures[f"underruns_{ms}ms_n"] = sum(one.n_underruns for one in found)
        figures[f"underruns_{ms}ms_total_ms"] = MS * sum(one.underrun_s for one in found)
        figures[f"underruns_{ms}ms_streams_pct"] = share_pct(n_with, len(found))
        figures[f"max_gap_{ms}ms_ms"] = MS * max((one.longest_s for one in found), default=0.0)
    return figures


def _viability(records: Sequence[StreamRecord]) -> Figures:
    # A stream of one chunk has none that could be late; like the reference, it is left out.
    several = [o.listened for o in records if o.listened is not None and o.listened.n_chunks]
    n_chunks = sum(one.n_chunks for one in several)
    n_viable = sum(one.n_on_time == one.n_chunks for one in several)
    return {
        "viable_chunks_pct": share_pct(sum(one.n_on_time for one in several), n_chunks),
        "viable_streams_pct": share_pct(n_viable, len(several)),
    }


def _goodput(records: Sequence[StreamRecord], duration_s: float, bound_s: float) -> Figures:
    return {
        f"goodput_{ms}ms_per_s": sum(one.is_good(bound_s, ms) for one in records) / duration_s
        for ms in PREBUFFERS_MS
    }

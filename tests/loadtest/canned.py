"""Streams and runs with known figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.measure.figures import Bounds, figures_of
from loadtest.measure.playout import PREBUFFERS_MS, Arrival
from loadtest.measure.streams import Heard, Listening, StreamRecord
from loadtest.report import RunReport, RunSettings

CLIENT = {
    "loop_lag_p99_ms": 2.0,
    "schedule_lag_p99_ms": 1.0,
    "microphone_lag_p99_ms": None,
    "busy_pct": 12.0,
}
MACHINE = {
    "machine": "x86_64",
    "processor": "One",
    "n_cores": 2,
    "system": "Linux 6",
    "python": "3",
    "torch": "2",
    "load_average_at_start": [0.0],
}


def heard(first_packet_s: float, *, sound_s: float | None = None, gaps: int = 0) -> Heard:
    """Two seconds of audio that came in half the time, with `gaps` underruns of 50 ms each."""
    listening = {
        ms: Listening(n_underruns=gaps, underrun_s=0.05 * gaps, longest_s=0.05 if gaps else 0.0)
        for ms in PREBUFFERS_MS
    }
    return Heard(
        first_packet_s=first_packet_s,
        first_sound_s=first_packet_s + 0.03 if sound_s is None else sound_s,
        last_packet_s=first_packet_s + 0.9,
        audio_s=2.0,
        listening=listening,
        gaps=(),
        n_chunks=10,
        n_on_time=10 - gaps,
    )


def record(asked_s: float = 0.0, wait_s: float = 0.1, *, gaps: int = 0, **changes: Any) -> Any:
    """A stream that was heard after `wait_s` (first packet)."""
    given: dict[str, Any] = {
        "kind": "speech",
        "part": "whole",
        "outcome": "completed",
        "asked_s": asked_s,
        "connect_s": 0.004,
        "heard": heard(asked_s + wait_s, gaps=gaps),
    }
    return StreamRecord(**{**given, **changes})


def settings(**changes: Any) -> RunSettings:
    given = RunSettings(
        scenario="speech",
        shares={"whole": 1.0},
        rate_per_s=2.0,
        duration_s=10.0,
        warmup_s=1.0,
        drain_s=30.0,
        seed=0,
        ttfa_bound_ms=500.0,
        answer_bound_ms=1500.0,
        microphone="opus",
        stall_s=30.0,
    )
    return replace(given, **changes)


def report(*waits_s: float, records: Any = None, client: Any = None, **changes: Any) -> RunReport:
    """A run of one stream each second, each heard after its wait."""
    streams = records or [record(float(idx), wait_s) for idx, wait_s in enumerate(waits_s)]
    asked = settings(**changes)
    faults = [] if client is None else ["the client's loop lag is 90 ms at p99 (> 20)"]
    return RunReport(
        settings=asked,
        machine=MACHINE,
        url="ws://127.0.0.1:8765",
        models=["toy-tone"],
        faults=faults,
        figures=figures_of(streams, asked.duration_s, Bounds()),
        client=client or CLIENT,
        details={},
        streams=streams,
        server=[{"at_s": 0.5, "n_active": 1.0, "rss_bytes": 5e8}],
    )


def frames(*received_ms: float, duration_ms: float = 20.0) -> list[Arrival]:
    """Frames that came at these times."""
    return [Arrival(received_s=at / 1000, duration_s=duration_ms / 1000) for at in received_ms]

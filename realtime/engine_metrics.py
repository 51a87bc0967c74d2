"""The engines' own numbers in `/metrics`, read through their doors at scrape time. Event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.handle import EngineHandle
from engine.histogram import Histogram

GAUGES: Final = {
    "is_ready": "1 once the engine is warm",
    "is_alive": "0 while the engine thread is dead or stuck",
    "n_active": "Streams that hold a slot",
    "n_queued": "Streams that wait for admission",
    "n_commands": "Commands that wait in the inbox",
    "n_pages_used": "KV pages in use, cached ones included",
    "n_pages_cached": "KV pages that the prefix cache holds",
    "n_pages": "KV pages",
    "n_slots_used": "Slots in use",
    "n_slots": "Slots",
    "last_step_ms": "Duration of the last step",
}
COUNTERS: Final = {
    "n_steps": "Steps run",
    "n_refused": "Streams refused",
    "n_failed": "Streams failed",
    "n_finished": "Streams finished",
    "n_aborted": "Streams aborted",
    "n_gave_way": "Times that a stream which nobody heard gave way to one that was waited for",
    "n_late_chunks": "Chunks that came after their client had run dry",
    "n_frames": "Frames detokenized",
    "n_samples": "Samples published",
}
HISTOGRAMS: Final = {
    "step_seconds": ("A step with all that it does", {"": "step_s"}),
    "ttfa_seconds": ("First text to the first chunk that leaves the engine", {"": "ttfa_s"}),
    "slack_seconds": ("Time left until a chunk was due, when it was published", {"": "slack_s"}),
    "stage_seconds": (
        "One call of a stage",
        {"decode": "decode_s", "prefill": "prefill_s", "detokenize": "detokenize_s"},
    ),
    "batch_size": (
        "What a step batches: decode and prompt rows, streams to detokenize",
        {"decode": "decode_rows", "prefill": "prefill_rows", "detokenize": "chunk_streams"},
    ),
}
"""By family: what it is, and the engine's own name for each stage (none: it has no stages)."""


class EngineCollector(Collector):
    """One family a number, one sample an engine."""

    def __init__(self, engines: Mapping[str, EngineHandle]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """All families, as they are now."""
        snapshots = {name: handle.stats() for name, handle in self._engines.items()}
        for field, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"parley_engine_{field}", text, labels=["model"])
            for name, stats in snapshots.items():
                gauge.add_metric([name], float(getattr(stats, field)))
            yield gauge
        for field, text in COUNTERS.items():
            counter = CounterMetricFamily(f"parley_engine_{field}", text, labels=["model"])
            for name, stats in snapshots.items():
                counter.add_metric([name], float(getattr(stats, field)))
            yield counter
        for family, (text, by_stage) in HISTOGRAMS.items():
            yield self._histograms(family, text, by_stage)

    def _histograms(self, family: str, text: str, by_stage: Mapping[str, str]) -> Metric:
        labels = ["model"] if "" in by_stage else ["model", "stage"]
        made = HistogramMetricFamily(f"parley_engine_{family}", text, labels=labels)
        for name, handle in self._engines.items():
            for stage, key in by_stage.items():
                histogram = handle.histograms.get(key)
                if histogram is not None:
                    values = [name, stage] if stage else [name]
                    made.add_metric(values, _buckets(histogram), histogram.sum)
        return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Values up to each bound. From one look at the counts: the engine goes on meanwhile."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(tuple(histogram.counts)), strict=True))

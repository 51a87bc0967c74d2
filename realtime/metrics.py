"""What the gateway counts, for `GET /metrics`. One registry an app, so that tests do not mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.handle import EngineHandle
from realtime.process_metrics import watch_process

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TTFA_BUCKETS_S: Final = (
    *(0.02, 0.035, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5),
    *(0.8, 1.2, 2.0, 5.0, 10.0),
)
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class GatewayMetrics:
    """Counters of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        watch_process(registry)
        self.ttfa_s = Histogram(
            "parley_ttfa_seconds",
            "First text of a response to its first audio frame taken by the socket",
            buckets=TTFA_BUCKETS_S,
            registry=registry,
        )
        self.sessions = Gauge("parley_sessions", "Open sockets", registry=registry)
        self.sessions_opened = Counter(
            "parley_sessions_opened", "Sockets since the start", registry=registry
        )
        self.streams = Gauge(
            "parley_streams", "Engine streams that the gateway has open", registry=registry
        )
        self.refusals = Counter(
            "parley_refusals", "Sockets refused before the upgrade", ["reason"], registry=registry
        )
        self.errors = Counter("parley_errors", "Error events sent", ["code"], registry=registry)
        self.responses = Counter(
            "parley_responses", "Responses ended", ["status"], registry=registry
        )
        self.failures = Counter(
            "parley_response_failures", "Responses that failed", ["code"], registry=registry
        )
        self.closes = Counter(
            "parley_closes", "Sockets closed by the server", ["code"], registry=registry
        )
        self.packets = Counter(
            "parley_packets_sent", "Audio frames sent", ["codec"], registry=registry
        )
        self.bytes_sent = Counter("parley_bytes_sent", "Bytes sent", ["kind"], registry=registry)
        self.audio_s = Counter("parley_audio_seconds_sent", "Audio sent", registry=registry)
        self.underrun_s = Counter(
            "parley_underrun_seconds", "Audio that came late, by send times", registry=registry
        )
        self.pauses = Counter(
            "parley_pauses", "Times that a slow client paused its stream", registry=registry
        )
        self.queue_s = Gauge("parley_queue_seconds", "Audio waiting for sockets", registry=registry)
        self.loop_lag_s = Histogram(
            "parley_event_loop_lag_seconds",
            "How much later than asked the event loop ran a timer",
            buckets=LAG_BUCKETS_S,
            registry=registry,
        )

    def watch(
        self,
        engines: Mapping[str, EngineHandle],
        *,
        n_streams: Callable[[], int],
        queue_s: Callable[[], float],
    ) -> None:
        """Read the engines and the queues whenever the metrics are read."""
        self.streams.set_function(n_streams)
        self.queue_s.set_function(queue_s)
        self.registry.register(_EngineCollector(engines))

    def text(self) -> bytes:
        """Everything in the Prometheus text form."""
        return generate_latest(self.registry)


GAUGES: Final = {
    "is_ready": "1 once the engine is warm",
    "is_alive": "0 while the engine thread is dead or stuck",
    "n_active": "Streams that hold a slot",
    "n_queued": "Streams that wait for admission",
    "n_pages_used": "KV pages in use",
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
}


class _EngineCollector(Collector):
    """The engines' own numbers, read at scrape time."""

    def __init__(self, engines: Mapping[str, EngineHandle]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """One family a number, one sample an engine."""
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

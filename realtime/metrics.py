"""What the gateway counts, for `GET /metrics`. One registry an app, so that tests do not mix.

docs/metrics.md tells what each number means. Event loop only; engines are read at scrape time
(`realtime.engine_metrics`), the process too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.handle import EngineHandle
from realtime.engine_metrics import EngineCollector
from realtime.playout import PlayoutClock
from realtime.process_metrics import watch_process

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TTFA_BUCKETS_S: Final = (
    *(0.02, 0.035, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5),
    *(0.8, 1.2, 2.0, 5.0, 10.0),
)
PREBUFFERS_MS: Final = (0, 50, 100, 200)
"""How long clients may wait before they play what has come."""
ROUNDING_S: Final = 1e-6
"""Sums of packet durations are not exact."""
FREED_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
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
            "parley_underrun_seconds",
            "Silence of clients that had nothing to play, by send times and their reports",
            registry=registry,
        )
        self.heard = Counter(
            "parley_responses_heard",
            "Responses of which a listener got sound, however they ended",
            registry=registry,
        )
        self.continuous = Counter(
            "parley_responses_continuous",
            "Those without a gap for a client that waits so long before it plays",
            ["prebuffer_ms"],
            registry=registry,
        )
        for prebuffer_ms in PREBUFFERS_MS:
            self.continuous.labels(str(prebuffer_ms))
        self.packets_dropped = Counter(
            "parley_packets_dropped",
            "Packets of 20 ms that waited for a socket when their response was stopped",
            registry=registry,
        )
        self.cancel_to_freed_s = Histogram(
            "parley_cancel_to_freed_seconds",
            "From the abort of an engine stream to the word that all it held is free",
            ["model"],
            buckets=FREED_BUCKETS_S,
            registry=registry,
        )
        self.pauses = Counter(
            "parley_pauses", "Times that a slow client paused its stream", registry=registry
        )
        self.queue_s = Gauge("parley_queue_seconds", "Audio waiting for sockets", registry=registry)
        self.longest_queue_s = Gauge(
            "parley_longest_queue_seconds",
            "Audio waiting for the socket that is furthest behind",
            registry=registry,
        )
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
        queues_s: Callable[[], Sequence[float]],
    ) -> None:
        """Read the engines and the queues whenever the metrics are read."""
        self.streams.set_function(n_streams)
        self.queue_s.set_function(lambda: sum(queues_s()))
        self.longest_queue_s.set_function(lambda: max(queues_s(), default=0.0))
        self.registry.register(EngineCollector(engines))

    def count_heard(self, playout: PlayoutClock) -> None:
        """Count a response that a listener heard some of, once it is over."""
        self.heard.inc()
        for prebuffer_ms in PREBUFFERS_MS:
            if playout.worst_late_s <= prebuffer_ms / 1000 + ROUNDING_S:
                self.continuous.labels(str(prebuffer_ms)).inc()

    def text(self) -> bytes:
        """Everything in the Prometheus text form."""
        return generate_latest(self.registry)

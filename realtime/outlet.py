"""A session's way out: typed events and audio into its send queue. Event loop only."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from realtime.errors import ProtocolError
from realtime.events import BaseServerEvent, ErrorDetail, ErrorEvent, ErrorType
from realtime.frames import AudioFrame
from realtime.metrics import GatewayMetrics
from realtime.send_queue import Outgoing, SendQueue
from realtime.wire_form import WireForm


class Outlet:
    """Gives every event its id and its form, and counts what goes out.

    Args:
        queue: of the socket.
        metrics: of the app.
        form: of the lane.
    """

    def __init__(self, queue: SendQueue, metrics: GatewayMetrics, form: WireForm) -> None:
        self.queue = queue
        self._metrics = metrics
        self._form = form
        self._numbers = itertools.count(1)

    @property
    def packets_per_message(self) -> int:
        """Packets of 20 ms that one message of audio may hold."""
        return self._form.packets_per_message

    def next_event_id(self) -> str:
        """An id for the next event."""
        return f"event_{next(self._numbers)}"

    def event(self, event: BaseServerEvent) -> None:
        """Send an event after everything that waits; it gets an id if it has none."""
        for message in self._form.event_messages(event, self.next_event_id):
            self.queue.put(Outgoing(message=message))

    def error(self, fault: ProtocolError, kind: ErrorType = "invalid_request_error") -> None:
        """Tell the client what was wrong."""
        self._metrics.errors.labels(fault.code).inc()
        detail = ErrorDetail(
            type=kind,
            code=fault.code,
            message=fault.message,
            param=fault.param,
            event_id=fault.event_id,
        )
        self.event(ErrorEvent(error=detail))

    def audio(
        self, frame: AudioFrame, n_packets: int, seconds: float, on_sent: Callable[[], None]
    ) -> None:
        """Send audio; `on_sent` is called once the socket has taken it."""

        def count() -> None:
            self._metrics.packets.labels(frame.codec).inc(n_packets)
            self._metrics.audio_s.inc(seconds)
            on_sent()

        self.queue.put(
            Outgoing(
                message=self._form.audio_message(frame, self.next_event_id),
                response_number=frame.response_number,
                seconds=seconds,
                n_packets=n_packets,
                on_sent=count,
            )
        )

    def drop_audio(self, response_number: int) -> int:
        """Forget the waiting audio of a response. Returns the number of packets."""
        return self.queue.drop_audio(response_number)

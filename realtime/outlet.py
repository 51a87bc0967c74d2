"""A session's way out: typed events and audio frames into its send queue. Event loop only."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from realtime.errors import ProtocolError
from realtime.events import BaseServerEvent, ErrorDetail, ErrorEvent, ErrorType
from realtime.frames import AudioFrame, encode_audio_frame
from realtime.metrics import GatewayMetrics
from realtime.protocol import encode_event
from realtime.send_queue import Outgoing, SendQueue


class Outlet:
    """Gives every event its id and counts what goes out.

    Args:
        queue: of the socket.
        metrics: of the app.
    """

    def __init__(self, queue: SendQueue, metrics: GatewayMetrics) -> None:
        self.queue = queue
        self._metrics = metrics
        self._numbers = itertools.count(1)

    def next_event_id(self) -> str:
        """An id for the next event."""
        return f"event_{next(self._numbers)}"

    def event(self, event: BaseServerEvent) -> None:
        """Send an event after everything that waits; it gets an id if it has none."""
        if not event.event_id:
            event = event.model_copy(update={"event_id": self.next_event_id()})
        self.queue.put(Outgoing(message=encode_event(event)))

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
        self.event(ErrorEvent(event_id=self.next_event_id(), error=detail))

    def audio(self, frame: AudioFrame, seconds: float, on_sent: Callable[[], None]) -> None:
        """Send an audio frame; `on_sent` is called once the socket has taken it."""
        message = encode_audio_frame(frame)

        def count() -> None:
            self._metrics.packets.labels(frame.codec).inc()
            self._metrics.audio_s.inc(seconds)
            on_sent()

        self.queue.put(
            Outgoing(
                message=message,
                response_number=frame.response_number,
                seconds=seconds,
                on_sent=count,
            )
        )

    def drop_audio(self, response_number: int) -> int:
        """Forget the waiting audio of a response. Returns the number of frames."""
        return self.queue.drop_audio(response_number)

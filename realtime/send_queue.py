"""What waits to go out on one socket: events and audio frames, in one order. Event loop only.

Events are few and always go through. Audio is measured in bytes and seconds: past the high mark the
producer is told to pause, under the low mark to go on. Nothing is dropped but on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from realtime.config import SendLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message: an event, or audio with its response, its seconds and its 20 ms packets.

    `on_sent` is called on the event loop once the socket has taken the message.
    """

    message: str | bytes
    response_number: int = 0
    seconds: float = 0.0
    n_packets: int = 0
    on_sent: Callable[[], None] | None = None

    @property
    def is_audio(self) -> bool:
        """Whether it is a response's sound: counted in bytes and seconds, dropped on demand."""
        return self.n_packets > 0


class SendQueue:
    """Bounded queue of one socket.

    Args:
        limits: the marks.
        on_pause: called with True past the high mark, with False under the low one.
    """

    def __init__(self, limits: SendLimits, on_pause: Callable[[bool], None]) -> None:
        self._limits = limits
        self._on_pause = on_pause
        self._waiting: deque[Outgoing] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._n_bytes = 0
        self._seconds = 0.0
        self._n_events = 0
        self._is_paused = False

    @property
    def n_bytes(self) -> int:
        """Bytes of audio that the socket has not taken, the frame being sent included."""
        return self._n_bytes

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return self._seconds

    @property
    def is_paused(self) -> bool:
        """Whether the producer has been told to pause."""
        return self._is_paused

    @property
    def is_over_hard_mark(self) -> bool:
        """Whether more waits than a paused producer can explain, or events pile up."""
        return (
            self._n_bytes > self._limits.hard_bytes
            or self._seconds > self._limits.hard_s
            or self._n_events > self._limits.max_events
        )

    def put(self, outgoing: Outgoing) -> None:
        """Add a message; never blocks."""
        self._waiting.append(outgoing)
        self._count(outgoing, 1)
        is_high = self._n_bytes > self._limits.high_bytes or self._seconds > self._limits.high_s
        if is_high and not self._is_paused:
            self._set_paused(True)
        self._changed.set()

    async def get(self) -> Outgoing:
        """The next message; it counts as waiting until `sent`."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def sent(self, outgoing: Outgoing) -> None:
        """The socket has taken a message that `get` gave."""
        self._count(outgoing, -1)
        if outgoing.on_sent is not None:
            outgoing.on_sent()
        self._resume_if_low()

    async def wait_room(self) -> None:
        """Wait while the producer is told to pause."""
        await self._has_room.wait()

    def drop_audio(self, response_number: int) -> int:
        """Forget the waiting audio of one response; events stay, in order. Returns the packets."""
        kept: deque[Outgoing] = deque()
        n_dropped = 0
        for one in self._waiting:
            if one.is_audio and one.response_number == response_number:
                self._count(one, -1)
                n_dropped += one.n_packets
            else:
                kept.append(one)
        self._waiting = kept
        self._resume_if_low()
        return n_dropped

    def drain_events(self) -> list[str | bytes]:
        """Take out the waiting events, for a last word before the close."""
        events = [one.message for one in self._waiting if not one.is_audio]
        self._waiting.clear()
        return events

    def _count(self, outgoing: Outgoing, sign: int) -> None:
        if outgoing.is_audio:
            self._n_bytes += sign * len(outgoing.message)
            # Sums of floats drift; an empty queue is empty.
            self._seconds = self._seconds + sign * outgoing.seconds if self._n_bytes else 0.0
        else:
            self._n_events += sign

    def _resume_if_low(self) -> None:
        is_low = self._n_bytes <= self._limits.low_bytes and self._seconds <= self._limits.low_s
        if is_low and self._is_paused:
            self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if is_paused:
            self._has_room.clear()
        else:
            self._has_room.set()
        self._on_pause(is_paused)

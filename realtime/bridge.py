"""The asyncio end of the thread boundary: engine events in, one feed a stream out.

The engine thread calls the relay once a step; that becomes one `call_soon_threadsafe`. Everything
else here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from engine.errors import EngineStoppedError
from engine.handle import EngineHandle
from engine.types import (
    AudioChunk,
    EngineEvent,
    Pcm,
    StreamFailed,
    StreamFinished,
    StreamId,
    TextDelta,
)

if TYPE_CHECKING:
    from models.base import PromptPlan

logger = logging.getLogger(__name__)


class EventRelay:
    """The sink that an engine is started with, before there is an event loop.

    Events that come while no loop is attached are dropped: no stream can be open then.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._feeds: dict[StreamId, StreamFeed] = {}

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        """Take one step's events. Engine thread; never blocks."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._deliver, tuple(events))
        except RuntimeError:
            # The loop closed between the look and the call: nobody is left to listen.
            logger.debug("%d engine events after the event loop's end", len(events))

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver on `loop` from now on."""
        self._loop = loop

    def detach(self) -> None:
        """Deliver nothing any more."""
        self._loop = None

    @property
    def n_streams(self) -> int:
        """Streams whose end has not come yet, aborted ones included."""
        return len(self._feeds)

    def register(self, feed: StreamFeed) -> None:
        """Deliver events of the feed's stream to it until the stream ends."""
        assert feed.stream_id not in self._feeds, "an engine gives every stream its own id"
        self._feeds[feed.stream_id] = feed

    def _deliver(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            feed = self._feeds.get(event.stream_id)
            if feed is None:
                continue
            feed.put(event)
            if feed.end is not None:
                del self._feeds[event.stream_id]


class StreamFeed:
    """What one engine stream gives, in order. Event loop only.

    Args:
        stream_id: of the stream.
        sample_rate_hz: of its audio.

    `end` is the engine's last event of the stream, `fault` what was wrong with its events;
    `on_freed` is called with the end of a stream that was aborted.
    """

    def __init__(self, stream_id: StreamId, sample_rate_hz: int) -> None:
        self.stream_id = stream_id
        self.end: StreamFinished | StreamFailed | None = None
        self.fault: StreamFailed | None = None
        self.on_freed: Callable[[], None] | None = None
        self._sample_rate_hz = sample_rate_hz
        self._pieces: deque[Pcm | str] = deque()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_dropped = False
        self._n_chunks = 0
        self._n_samples = 0

    @property
    def outcome(self) -> StreamFinished | StreamFailed | None:
        """How the stream ended for the listener; None while it goes on."""
        return self.fault or self.end

    @property
    def received_s(self) -> float:
        """Seconds of audio that have come."""
        return self._n_samples / self._sample_rate_hz

    @property
    def n_samples(self) -> int:
        """Samples that have come, at the model's rate."""
        return self._n_samples

    def put(self, event: EngineEvent) -> None:
        """Take an event of this stream."""
        if isinstance(event, AudioChunk):
            self._put_chunk(event)
        elif isinstance(event, TextDelta):
            if not self._is_dropped and self.outcome is None:
                self._pieces.append(event.text)
        elif isinstance(event, StreamFinished | StreamFailed):
            self.end = event
            self._ended.set()
            is_aborted = isinstance(event, StreamFinished) and event.reason == "aborted"
            if is_aborted and self.on_freed is not None:
                self.on_freed()
        self._changed.set()

    def drop(self) -> None:
        """Keep nothing any more: nobody listens."""
        self._is_dropped = True
        self._pieces.clear()

    async def next_chunk(self, timeout_s: float) -> Pcm | None:
        """The next audio; None at the stream's end (see `outcome`).

        Raises:
            TimeoutError: no event of the stream came for `timeout_s` seconds.
        """
        while isinstance(piece := await self.next_piece(timeout_s), str):
            pass
        return piece

    async def next_piece(self, timeout_s: float) -> Pcm | str | None:
        """The next audio or text, as the model gave them; None at the stream's end.

        Raises:
            TimeoutError: no event of the stream came for `timeout_s` seconds.
        """
        while not self._pieces:
            if self.outcome is not None:
                return None
            self._changed.clear()
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        return self._pieces.popleft()

    async def wait_end(self, timeout_s: float) -> bool:
        """Wait for the stream's end, at most so long. Returns whether it has come."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _put_chunk(self, chunk: AudioChunk) -> None:
        if self._is_dropped or self.outcome is not None:
            return
        if chunk.chunk_idx != self._n_chunks:
            message = f"chunk {chunk.chunk_idx} came where {self._n_chunks} was due"
            self.fault = StreamFailed(stream_id=self.stream_id, code="model_error", message=message)
            self._ended.set()
            return
        self._n_chunks += 1
        self._n_samples += len(chunk.pcm)
        if len(chunk.pcm):
            self._pieces.append(chunk.pcm)


class EngineBridge:
    """One engine as the gateway sees it.

    Args:
        handle: the engine's door.
        relay: the sink that the engine was started with.
        clock: monotonic seconds.
        on_freed: told of each aborted stream how long the engine took to free it, in seconds.
    """

    def __init__(
        self,
        handle: EngineHandle,
        relay: EventRelay,
        clock: Callable[[], float] = time.monotonic,
        on_freed: Callable[[float], None] | None = None,
    ) -> None:
        self.handle = handle
        self.relay = relay
        self.spec = handle.spec
        self._clock = clock
        self._on_freed = on_freed

    def open_stream(
        self,
        plan: PromptPlan,
        *,
        seed: int,
        asked_s: float,
        play_from_s: float | None,
        is_paced: bool = True,
    ) -> StreamFeed:
        """Start a stream.

        Raises:
            EngineStoppedError: the engine has ended.
        """
        # No await between the two: an event of the stream can only be delivered after this.
        stream_id = self.handle.open_stream(
            plan, seed=seed, asked_s=asked_s, play_from_s=play_from_s, is_paced=is_paced
        )
        feed = StreamFeed(stream_id, self.spec.frame.sample_rate_hz)
        self.relay.register(feed)
        return feed

    def extend_text(self, feed: StreamFeed, plan: PromptPlan, text: str, *, is_final: bool) -> None:
        """Give a stream more text."""
        if feed.outcome is None:
            with _unless_stopped(feed):
                self.handle.extend_text(feed.stream_id, plan, text, is_final=is_final)

    def report_playout(self, feed: StreamFeed, heard_s: float, at_s: float) -> None:
        """Tell how much of a stream the client has heard, or when it will begin to."""
        if feed.outcome is None:
            with _unless_stopped(feed):
                self.handle.report_playout(feed.stream_id, heard_s, at_s)

    def set_paused(self, feed: StreamFeed, *, is_paused: bool) -> None:
        """Leave a stream out for a while, or take it in again."""
        if feed.outcome is None:
            with _unless_stopped(feed):
                self.handle.set_paused(feed.stream_id, is_paused=is_paused)

    def abort(self, feed: StreamFeed) -> None:
        """End a stream and forget its audio."""
        feed.drop()
        if feed.end is None:
            if feed.on_freed is None:
                feed.on_freed = partial(self._tell_freed, self._clock())
            with _unless_stopped(feed):
                self.handle.abort(feed.stream_id)

    def _tell_freed(self, aborted_s: float) -> None:
        if self._on_freed is not None:
            self._on_freed(self._clock() - aborted_s)


@contextmanager
def _unless_stopped(feed: StreamFeed) -> Iterator[None]:
    """A stopped engine has no stream left to tell anything; its end comes as an event."""
    try:
        yield
    except EngineStoppedError:
        logger.debug("stream %d: the engine has stopped", feed.stream_id)

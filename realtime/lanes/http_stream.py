"""A streamed HTTP answer: as long as it is wanted, and no faster than it is read. Event loop only.

What is in the answer is its lane's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.types import Receive, Scope, Send

from realtime.config import SendLimits
from realtime.errors import GatewayError
from realtime.playout import PlayoutClock
from realtime.send_queue import Outgoing, SendQueue
from realtime.sockets import CUT_EXTENSION

Result = TypeVar("Result")

WATCH_TICK_S: Final = 0.2
LAST_WORD_S: Final = 1.0
END: Final = Outgoing(message="")
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


class ClientGoneError(GatewayError):
    """The client has left: there is nobody to tell."""


class ClientTooSlowError(GatewayError):
    """The client takes nothing, although a listener would have heard all that it has."""


class StoppedError(GatewayError):
    """The server ends what still goes on."""


async def while_wanted(
    work: Coroutine[Any, Any, Result],
    receive: Receive,
    stop: asyncio.Event,
    has_ended: Callable[[], bool] = lambda: False,
) -> Result:
    """The result of `work`, which is cancelled once nobody wants it.

    Args:
        work: is awaited to its end, whatever happens.
        receive: of a request whose body has been read.
        stop: set when the server ends all that goes on.
        has_ended: whether `work` has sent the end of the answer. After it the server says that the
            client has left, whether it has or not.

    Raises:
        ClientGoneError: the client has left.
        StoppedError: `stop` was set.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(receive))
    stopping = asyncio.create_task(stop.wait())
    tasks = {working, leaving, stopping}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done() or has_ended():
            return await working
        raise ClientGoneError("the client has left") if leaving.done() else StoppedError("stopped")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class HttpStream:
    """The body of one answer.

    Args:
        scope: of the request.
        receive: of the request.
        send: of the request.
        limits: what may wait for the socket.
        clock: monotonic seconds.
        on_pause: called with True when the client reads too slowly, with False when no more.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        limits: SendLimits,
        clock: Callable[[], float],
        on_pause: Callable[[bool], None],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limits = limits
        self._clock = clock
        self._send_began_s: float | None = None
        self.content_type = EVENT_STREAM
        self.queue = SendQueue(limits, on_pause)
        self.playout = PlayoutClock()
        self.has_begun = False
        self.has_ended = False

    def put(self, message: bytes, seconds: float, on_sent: Callable[[], None]) -> None:
        """Send so much of the body, which holds so many seconds of audio."""
        self.queue.put(Outgoing(message=message, seconds=seconds, n_packets=1, on_sent=on_sent))

    def end(self) -> None:
        """Nothing follows."""
        self.queue.put(END)

    async def send_loop(self) -> None:
        """Send until the end."""
        while (outgoing := await self.queue.get()) is not END:
            assert isinstance(outgoing.message, bytes), "a body has no events of the socket lanes"
            self._send_began_s = self._clock()
            await self._begin()
            await self._send_body(outgoing.message, more_body=True)
            self._send_began_s = None
            self.playout.on_sent(outgoing.seconds, self._clock())
            self.queue.sent(outgoing)
        self.has_ended = True
        await self._begin()
        await self._send_body(b"", more_body=False)

    async def watch(self) -> None:
        """Look whether the client reads.

        Raises:
            ClientTooSlowError: it took nothing for so long, and would not have played meanwhile.
        """
        while True:
            await asyncio.sleep(WATCH_TICK_S)
            self.check(self._clock())

    def check(self, now_s: float) -> None:
        """One look. Raises: `ClientTooSlowError`."""
        began_s = self._send_began_s
        if began_s is None or self.playout.ahead_s(now_s) > 0:
            return
        if now_s - began_s > self._limits.blocked_s:
            raise ClientTooSlowError(f"client took nothing for {self._limits.blocked_s:g} s")

    async def break_off(self, last_word: bytes = b"") -> None:
        """End the body before its time, once `send_loop` has been cancelled.

        Args:
            last_word: tells the client, where the form of the body has words for it. Without, or
                when it is not taken, the connection is broken off: the body is not complete.
        """
        if last_word:
            try:
                async with asyncio.timeout(LAST_WORD_S):
                    await self._send_body(last_word, more_body=False)
                    return
            except TimeoutError:
                pass
        extension = self._scope.get("extensions", {}).get(CUT_EXTENSION)
        if extension is not None:
            extension["cut"]()
            await _disconnect(self._receive)

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        headers = [(b"content-type", self.content_type.encode())]
        # Proxies that gather an answer before they pass it on would undo the streaming.
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def server_event(value: dict[str, Any], name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

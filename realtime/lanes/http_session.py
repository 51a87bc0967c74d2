"""One request that goes on for a while: a session of the gateway for as long as it lasts.

It is read, worked for while its client is there, and answered: whole, in a stream, or with an
error. What is done for it is its lane's business. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.audio.recordings import RecordingError
from realtime.agent.errors import StageError
from realtime.errors import ProtocolError
from realtime.gateway import Gateway
from realtime.lanes.http_errors import (
    RefusedError,
    check_open,
    counted,
    full,
    refusal_of,
    stopping,
)
from realtime.lanes.http_stream import (
    ClientGoneError,
    ClientTooSlowError,
    HttpStream,
    StoppedError,
    server_event,
    while_wanted,
)
from realtime.socket_link import first_of
from realtime.speech.errors import ResponseFailedError

logger = logging.getLogger(__name__)

TOO_SLOW: Final = "client_too_slow"
STATUS: Final = {"overloaded": 503, "engine_stopped": 503, "engine_timeout": 504}
"""Of what fails here; 500 where it is not named."""
CLIENT_CODES: Final = frozenset(("unsupported_language",))
"""Of a stage that fails because of what was asked."""

Fault = (
    RefusedError
    | ProtocolError
    | ResponseFailedError
    | StageError
    | RecordingError
    | ClientTooSlowError
)
FAULTS: Final = (
    RefusedError,
    ProtocolError,
    ResponseFailedError,
    StageError,
    RecordingError,
    ClientTooSlowError,
)
"""Foreseen ends of a request; others are ours, and are logged."""


class HttpSession(Response, ABC):
    """The answer to one request.

    Args:
        gateway: what sessions share.
    """

    stream: HttpStream
    """From the call on."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self.gateway = gateway
        self.is_event_stream = False
        self.resources = AsyncExitStack()
        """Given back at the end."""
        self._stop = asyncio.Event()

    # What a lane does.

    @abstractmethod
    async def read(self, request: Request) -> None:
        """Read the body. Raises: one of `Fault`, or `ClientDisconnect`."""

    @abstractmethod
    async def work(self) -> Response | None:
        """Do what is asked. Returns the whole answer; None where it was put into the stream.

        Raises: one of `Fault`.
        """

    def on_pause(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""

    def on_end(self, refusal: RefusedError | None, *, is_gone: bool) -> None:
        """It is over: complete, left by the client, or with an error."""

    # A session, as the gateway sees it.

    has_work = True

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        return self.stream.queue.seconds

    def request_stop(self) -> None:
        """It ends by itself."""

    def stop_now(self) -> None:
        """End at once."""
        self._stop.set()

    # Its life.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        gateway = self.gateway
        has_place = not gateway.is_stopping and gateway.count.enter()
        if not has_place:
            refusal = stopping(gateway) if gateway.is_stopping else full(gateway)
            await counted(refusal, gateway)(scope, receive, send)
            return
        self.stream = HttpStream(
            scope,
            receive,
            send,
            limits=gateway.config.send,
            clock=gateway.clock,
            on_pause=self.on_pause,
        )
        gateway.enter(self)
        try:
            async with self.resources:
                answer = await self._answer(Request(scope, receive))
            if answer is not None:
                await answer(scope, receive, send)
        finally:
            gateway.leave(self)
            gateway.count.leave()

    async def _answer(self, request: Request) -> Response | None:
        """Serve it. Returns what is still to be sent."""
        answer: Response | None = None
        refusal: RefusedError | None = None
        is_gone = False
        try:
            check_open(self.gateway)
            await self.read(request)
            answer = await while_wanted(
                self._work_and_send(), request.receive, self._stop, lambda: self.stream.has_ended
            )
        except (ClientGoneError, ClientDisconnect):
            is_gone = True
        except StoppedError:
            refusal = stopping(self.gateway)
        except (RefusedError, ProtocolError) as fault:
            refusal = answer_to(fault)
        # A bug costs this request and nothing else, and its client is told in words.
        except Exception:
            logger.exception("a request ended by a fault of ours")
            refusal = RefusedError(500, "internal_error", "a fault of the server; it was logged")
        self.on_end(refusal, is_gone=is_gone)
        if refusal is None:
            return answer
        if not self.stream.has_begun:
            return counted(refusal, self.gateway)
        await self._break_off(refusal)
        return None

    async def _break_off(self, refusal: RefusedError) -> None:
        logger.info("an answer was broken off: %s", refusal.message)
        is_told = self.is_event_stream and refusal.code != TOO_SLOW
        event = server_event({"type": "error", "error": refusal.detail()}, name="error")
        await self.stream.break_off(event if is_told else b"")

    async def _work_and_send(self) -> Response | None:
        answer: Response | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self.stream.send_loop())
                watching = tasks.create_task(self.stream.watch())
                answer = await self.work()
                if answer is None:
                    self.stream.end()
                    await sending
                sending.cancel()
                watching.cancel()
        except* FAULTS as group:
            fault = first_of(group)
        else:
            return answer
        raise answer_to(fault)


def answer_to(fault: Fault) -> RefusedError:
    """What the client is told of a failure."""
    match fault:
        case RefusedError():
            return fault
        case ProtocolError():
            return refusal_of(fault)
        case ClientTooSlowError():
            return RefusedError(408, TOO_SLOW, str(fault))
        case RecordingError():
            return RefusedError(400, fault.code, fault.message, param="file")
        case StageError():
            if fault.code in CLIENT_CODES:
                return RefusedError(400, fault.code, fault.message, param="language")
        case ResponseFailedError():
            if fault.kind == "invalid_request_error":
                return RefusedError(400, fault.code, fault.message, param=fault.param or "input")
    status = STATUS.get(fault.code, 503 if fault.retry_after_s else 500)
    return RefusedError(status, fault.code, fault.message, retry_after_s=fault.retry_after_s)

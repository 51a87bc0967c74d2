"""One speech socket: its events, and the responses in turn. Event loop only.

Text between two `input_text.end` is one response. Responses are spoken one after another; those
that wait are bounded. A response that ends early (failed, cut) lets its remaining text fall up to
its `input_text.end`, so that the client need not know in the middle of a sentence.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Final

from starlette.websockets import WebSocket

from models.text.errors import TextError, check_text
from realtime.errors import ProtocolError
from realtime.events import (
    ClientEvent,
    InputTextAppend,
    InputTextEnd,
    InputTextFlush,
    OutputAudioPlayout,
    ResponseCancel,
    ResponseCreate,
    ResponsePatch,
    SessionCreated,
    SessionInfo,
    SessionUpdate,
    SessionUpdated,
)
from realtime.frames import parse_audio_frame
from realtime.gateway import Gateway
from realtime.protocol import parse_client_event
from realtime.settings import (
    MAX_SEED,
    SpeechSettings,
    asked_seed,
    merge_settings,
    output_in_force,
    session_info,
)
from realtime.socket_link import SocketLink, obey
from realtime.speech.responses import SpeechResponse

N_KNOWN_RESPONSES: Final = 64


class SpeechSession:
    """A conversation of text in and audio out.

    Args:
        socket: accepted.
        gateway: what sessions share.
    """

    def __init__(self, socket: WebSocket, gateway: Gateway) -> None:
        self.session_id = f"sess_{secrets.token_hex(8)}"
        self._gateway = gateway
        self._config = gateway.config
        self._link = SocketLink(
            self.session_id, socket, gateway, self, self, lasts_s=gateway.config.max_session_s
        )
        self._outlet = self._link.outlet
        self._settings = SpeechSettings(model=next(iter(gateway.speaking)))
        self._responses: deque[SpeechResponse] = deque()
        self._open: SpeechResponse | None = None
        self._has_warned_end = False
        self._n_responses = 0
        self._known_ids: deque[str] = deque(maxlen=N_KNOWN_RESPONSES)
        self._arrived = asyncio.Event()

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        return self._link.queue.seconds

    def request_stop(self) -> None:
        """End once nothing is being spoken, and begin nothing."""
        self._link.request_stop()

    def stop_now(self) -> None:
        """End at once."""
        self._link.stop_now()

    async def run(self) -> None:
        """Serve the socket until either side ends it. Leaves nothing behind in the engine."""
        self._gateway.enter(self)
        try:
            self._outlet.event(
                SessionCreated(event_id=self._outlet.next_event_id(), session=self._info())
            )
            await self._link.run([self._respond_loop], self._cut_off)
        finally:
            self._gateway.leave(self)

    # Down from the client.

    def on_text(self, message: str) -> None:
        """Obey an event."""
        obey(message, parse_client_event, self._perform, self._outlet)

    def on_bytes(self, message: bytes) -> None:
        """Refuse audio, in words."""
        try:
            parse_audio_frame(message)
            raise ProtocolError("unexpected_audio", "this socket takes text, not audio")
        except ProtocolError as fault:
            self._outlet.error(fault)

    def on_paused(self, is_paused: bool) -> None:
        """Hold back the response that speaks, or let it go on."""
        if self._responses:
            self._responses[0].set_paused(is_paused)

    @property
    def has_work(self) -> bool:
        """Whether something is being spoken."""
        return bool(self._responses)

    @property
    def is_waiting(self) -> bool:
        """Whether every response waits for text."""
        return all(response.is_waiting_for_text for response in self._responses)

    def _perform(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate():
                self._update(event)
            case ResponseCreate():
                self._create_asked(event)
            case InputTextAppend():
                self._append(event)
            case InputTextFlush():
                if self._open is not None:
                    self._open.flush()
            case InputTextEnd():
                (self._open or self._create(ResponsePatch())).end()
                self._open = None
            case ResponseCancel():
                self._cancel(event)
            case OutputAudioPlayout():
                self._report_playout(event)

    def _update(self, event: SessionUpdate) -> None:
        self._settings = merge_settings(
            self._settings, event.session, self._gateway.speaking, prefix="session"
        )
        self._outlet.event(
            SessionUpdated(event_id=self._outlet.next_event_id(), session=self._info())
        )

    def _create_asked(self, event: ResponseCreate) -> None:
        if self._open is not None and not self._open.is_done:
            raise ProtocolError(
                "conversation_already_has_active_response",
                f"response {self._open.response_id} still takes text; send input_text.end first",
            )
        self._create(event.response)

    def _append(self, event: InputTextAppend) -> None:
        try:
            check_text(event.text)
        except TextError as error:
            raise ProtocolError("invalid_text", str(error), param="text") from None
        n_characters = len(event.text) + (self._open.n_characters if self._open else 0)
        limit = self._config.max_text_characters
        if n_characters > limit:
            message = f"a response takes at most {limit} characters of text, not {n_characters}"
            raise ProtocolError("text_too_long", message, param="text")
        response = self._open or self._create(ResponsePatch())
        response.append(event.text)
        if response.is_done and not self._has_warned_end:
            self._has_warned_end = True
            message = f"response {response.response_id} has ended; its text falls until its end"
            raise ProtocolError("response_ended", message)

    def _create(self, patch: ResponsePatch) -> SpeechResponse:
        if self._link.is_stopping:
            raise ProtocolError("server_stopping", "the server is stopping; connect again")
        n_max = self._config.max_queued_responses
        if len(self._responses) > n_max:
            message = f"{n_max} responses wait already; send more when one is done"
            raise ProtocolError("too_many_responses", message)
        settings = merge_settings(self._settings, patch, self._gateway.speaking, prefix="response")
        bridge = self._gateway.bridges[settings.model]
        seed = asked_seed(settings, bridge.spec)
        self._n_responses += 1
        response = SpeechResponse(
            response_id=f"resp_{self.session_id[5:]}_{self._n_responses}",
            number=self._n_responses,
            settings=settings,
            output=output_in_force(settings.output, bridge.spec, self._config),
            metadata=patch.metadata,
            seed=self._gateway.random.randint(0, MAX_SEED) if seed is None else seed,
            bridge=bridge,
            outlet=self._outlet,
            workers=self._gateway.workers,
            config=self._config,
            metrics=self._gateway.metrics,
            clock=self._gateway.clock,
        )
        response.announce()
        self._open = response
        self._has_warned_end = False
        self._responses.append(response)
        self._known_ids.append(response.response_id)
        self._arrived.set()
        return response

    def _cancel(self, event: ResponseCancel) -> None:
        wanted = event.response_id
        for response in self._responses:
            if not response.is_done and wanted in (None, response.response_id):
                response.cancel()
                if response is self._open:
                    self._open = None
                return
        named = "no response is active" if wanted is None else f"{wanted!r} is not active"
        param = None if wanted is None else "response_id"
        message = f"Cancellation failed: {named}"
        raise ProtocolError("response_cancel_not_active", message, param=param)

    def _report_playout(self, event: OutputAudioPlayout) -> None:
        if event.response_id not in self._known_ids:
            message = f"unknown response {event.response_id!r}"
            raise ProtocolError("unknown_response", message, param="response_id")
        if self._responses and self._responses[0].response_id == event.response_id:
            self._responses[0].report_playout(event.heard_ms / 1000)

    # Up to the client.

    async def _respond_loop(self) -> None:
        while True:
            while not self._responses:
                self._arrived.clear()
                await self._arrived.wait()
            response = self._responses[0]
            response.set_paused(self._link.queue.is_paused)
            await response.run()
            self._responses.popleft()
            self._link.touch()

    def _cut_off(self) -> None:
        for response in self._responses:
            response.cut_off()

    def _info(self) -> SessionInfo:
        spec = self._gateway.speaking[self._settings.model]
        return session_info(self.session_id, self._settings, spec, self._config)

"""`POST /v1/audio/transcriptions`: one recording to words. Event loop only.

Recordings are read in small pieces in the worker threads, and heard by the same speech to text as
conversations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from engine.types import Pcm
from models.audio.recordings import Recording
from realtime.agent.base import HEARD_RATE_HZ
from realtime.agent.recording import HeardPiece, transcribe_recording
from realtime.conversation.conversing import Conversing
from realtime.gateway import Gateway
from realtime.lanes.http_bodies import bounded
from realtime.lanes.http_errors import RefusedError, unavailable
from realtime.lanes.http_session import HttpSession
from realtime.lanes.http_stream import server_event
from realtime.lanes.transcription_forms import text_of, transcript_response, usage_of
from realtime.lanes.transcription_order import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_FILE_BYTES,
    TranscriptionOrder,
    check_hearing,
    read_order,
)

FORM_BYTES: Final = 65_536
"""For all of a form but its file."""
MAX_RECORDING_S: Final = 1800.0
MAX_OPEN: Final = 16
"""Recordings on their way in, waiting or being heard; more are refused."""
MAX_HEARD: Final = 2
"""Recordings that are heard at once: each has one piece with the transcriber at a time."""


class Transcriptions:
    """What all recordings share.

    Args:
        gateway: what sessions share.
        conversing: who transcribes and what finds voices; None: nobody does.
    """

    def __init__(self, gateway: Gateway, conversing: Conversing | None) -> None:
        self.gateway = gateway
        self.conversing = conversing
        self.turns = asyncio.Semaphore(MAX_HEARD)
        self._n_open = 0

    async def create(self, request: Request) -> Response:
        """Transcribe the file of the form."""
        return TranscriptionAnswer(self)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Room for one recording. Raises: `RefusedError`."""
        if self._n_open >= MAX_OPEN:
            raise unavailable("overloaded", "too many recordings wait already", self.gateway)
        self._n_open += 1
        try:
            yield
        finally:
            self._n_open -= 1


class TranscriptionAnswer(HttpSession):
    """One recording being transcribed for one client.

    Args:
        shared: what all recordings share.
    """

    _order: TranscriptionOrder
    _conversing: Conversing

    def __init__(self, shared: Transcriptions) -> None:
        super().__init__(shared.gateway)
        self._shared = shared
        self._seconds = 0.0
        self._pieces: list[HeardPiece] = []

    async def read(self, request: Request) -> None:
        """Read the form; its file goes to disk."""
        self._conversing = check_hearing(self._shared.conversing)
        self.resources.enter_context(self._shared.place())
        form = await _read_form(request)
        self.resources.push_async_callback(form.close)
        self._order = read_order(form, self._conversing)
        self.is_event_stream = self._order.is_event_stream

    async def work(self) -> Response | None:
        """Transcribe it."""
        async with self._shared.turns, aclosing(self._heard()) as pieces:
            async for piece in pieces:
                self._take(piece)
        order = self._order
        if not order.is_event_stream:
            return transcript_response(
                self._pieces, self._seconds, order.text_format, order.language
            )
        done = {
            "type": "transcript.text.done",
            "text": text_of(self._pieces),
            "usage": usage_of(self._seconds),
        }
        self.stream.put(server_event(done), 0.0, lambda: None)
        return None

    def _take(self, piece: HeardPiece) -> None:
        if self._order.is_event_stream:
            text = f" {piece.text}" if self._pieces else piece.text
            delta = {"type": "transcript.text.delta", "delta": text}
            self.stream.put(server_event(delta), 0.0, lambda: None)
        self._pieces.append(piece)

    async def _heard(self) -> AsyncGenerator[HeardPiece]:
        run = self.gateway.workers.run
        recording = await run(_open, self._order)

        async def read() -> Pcm | None:
            pcm = await run(recording.read)
            self._seconds = recording.seconds
            return pcm

        try:
            pieces = transcribe_recording(
                read,
                agent=self._order.agent,
                track=self._conversing.detector.open_track(),
                language=self._order.language,
            )
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            await run(recording.close)


def _open(order: TranscriptionOrder) -> Recording:
    return Recording(order.file, rate_hz=HEARD_RATE_HZ, max_s=MAX_RECORDING_S)


async def _read_form(request: Request) -> FormData:
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        message = "the body must be a form with a file: send Content-Type: multipart/form-data"
        raise RefusedError(415, "unsupported_media_type", message)
    pieces = bounded(request, MAX_FILE_BYTES + FORM_BYTES)
    parser = MultiPartParser(
        request.headers,
        pieces,
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        async with aclosing(pieces):
            return await parser.parse()
    except MultiPartException as error:
        raise RefusedError(
            400, "invalid_form", f"the form cannot be read: {error.message}"
        ) from None

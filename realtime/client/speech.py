"""The client of the speech lane: text in, decoded audio out. Async, with a thin blocking form.

Knows the wire form only. `parley say`, the tests and the load generator share it.

    async with SpeechClient("ws://127.0.0.1:8765") as client:
        speech = await client.speak("Good morning.")
        async for pcm in speech:          # float32 (n_samples,), while it is being generated
            play(pcm, speech.sample_rate_hz)
        print(speech.result.ttfa_s)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from threading import Thread
from typing import Any, Self, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from realtime.client.connect import DEFAULT_URL, lost_error, open_socket, speech_url
from realtime.client.inlet import Inlet
from realtime.client.received_audio import Pcm, opus_decoder
from realtime.client.spoken import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    MakeDecoder,
    RefusedError,
    Speech,
    SpeechResult,
)
from realtime.errors import ProtocolError
from realtime.events import (
    ClientEvent,
    ErrorDetail,
    ErrorEvent,
    OutputAudioDone,
    OutputAudioStarted,
    ResponseCreated,
    ResponseDone,
    ResponsePatch,
    SessionCreated,
    SessionInfo,
    SessionPatch,
    SessionUpdate,
    SessionUpdated,
)
from realtime.frames import AudioFrame, is_current, parse_audio_frame
from realtime.protocol import (
    encode_event,
    parse_server_event,
)

__all__ = [
    "DEFAULT_URL",
    "ClientError",
    "ConnectError",
    "ConnectionLostError",
    "RefusedError",
    "Speech",
    "SpeechClient",
    "SpeechResult",
    "SyncSpeech",
    "SyncSpeechClient",
    "speech_url",
]

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class SpeechClient:
    """One socket to the speech lane; speaks any number of responses, one after another.

    Audio that is not taken waits in memory: iterate a `Speech`, or cancel it.

    Args:
        url: of the server, e.g. `ws://127.0.0.1:8765`.
        session: settings of the session (model, voice, language, options, output); None: defaults.
        api_key: that the server wants, if it wants one.
        is_decoding: False leaves the packets undecoded (`Speech.frames` only).
        open_timeout_s: longest wait for the connection.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        session: SessionPatch | None = None,
        api_key: str | None = None,
        is_decoding: bool = True,
        open_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = speech_url(url)
        self.session: SessionInfo | None = None
        self.n_stale_frames = 0
        self._patch = session
        self._api_key = api_key
        self._make_decoder: MakeDecoder | None = opus_decoder if is_decoding else None
        self._open_timeout_s = open_timeout_s
        self._clock = clock
        self._socket: ClientConnection | None = None
        self._inlet: Inlet | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lost: ClientError | None = None
        self._waiting: deque[Speech] = deque()
        self._active: dict[str, Speech] = {}
        self._updates: dict[str, asyncio.Future[SessionInfo]] = {}
        self._keys = (f"c{n}" for n in itertools.count(1))
        self._text_turn = asyncio.Lock()
        self._cancels: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def connect(self) -> SessionInfo:
        """Open the socket and set up the session.

        Raises:
            ConnectError: nobody answers, or not with this protocol.
            RefusedError: the session's settings were refused; the socket is closed again.
        """
        self._socket = await open_socket(self.url, self._open_timeout_s, self._api_key)
        created = self._new_update("session.created")
        self._inlet = Inlet(self._socket)
        self._reader = asyncio.create_task(
            self._read(self._socket, self._inlet), name="speech client reader"
        )
        try:
            self.session = await created
            if self._patch is not None:
                await self.update(self._patch)
        except ClientError:
            await self.close()
            raise
        return self.session

    async def close(self) -> None:
        """Close the socket; unfinished responses end with `ConnectionLostError`."""
        for speech in [*self._waiting, *self._active.values()]:
            speech.fail(ConnectionLostError("the client closed the connection"))
        for task in self._cancels:
            task.cancel()
        if self._inlet is not None:
            self._inlet.resume()
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            await self._reader

    @property
    def inlet(self) -> Inlet:
        """What it reads from, for a test that stops reading or loses the connection."""
        assert self._inlet is not None, "connected before"
        return self._inlet

    async def update(self, patch: SessionPatch) -> SessionInfo:
        """Change the session's settings. Raises: `RefusedError`; then nothing has changed."""
        key = next(self._keys)
        updated = self._new_update(key)
        await self._send(SessionUpdate(event_id=key, session=patch))
        self.session = await updated
        return self.session

    async def speak(
        self, text: str | AsyncIterable[str], *, overrides: ResponsePatch | None = None
    ) -> Speech:
        """Begin a response; its text is sent in the background.

        Args:
            text: all of it, or deltas as they come. The text of the next response is sent when the
                deltas of this one have ended.
            overrides: settings of this response alone, and metadata that comes back with it.
        """
        if self._socket is None:
            raise ClientError("not connected; use `async with SpeechClient(...)` or `connect()`")
        speech = Speech(next(self._keys), self._send, self._make_decoder, self._clock)
        if self._lost is not None:
            speech.fail(self._lost)
            return speech
        speech.start_sending(
            text, overrides or ResponsePatch(), self._text_turn, self._waiting.append
        )
        return speech

    async def _send(self, event: ClientEvent) -> None:
        assert self._socket is not None, "speeches and updates exist only after connect()"
        try:
            await self._socket.send(encode_event(event))
        except ConnectionClosed as closed:
            raise self._lost or lost_error(closed) from closed

    def _new_update(self, key: str) -> asyncio.Future[SessionInfo]:
        """A future for the next answer about the session; answers come in the order of asking."""
        future: asyncio.Future[SessionInfo] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            raise self._lost
        self._updates[key] = future
        return future

    async def _read(self, socket: ClientConnection, inlet: Inlet) -> None:
        """Take messages until the socket closes, then fail what is left."""
        lost: ClientError
        try:
            # Not `async for`: it ends without a word on 1000 and 1001, and the reason is lost.
            while True:
                self._on_message(await inlet.next(), self._clock())
        except ConnectionClosed as closed:
            lost = lost_error(closed)
        except ProtocolError as error:
            lost = ClientError(f"the server does not keep to the protocol: {error.message}")
            await socket.close()
        self._lost = lost
        for speech in [*self._waiting, *self._active.values()]:
            speech.fail(lost)
        for future in self._updates.values():
            future.set_exception(lost)

    def _on_message(self, message: str | bytes, now_s: float) -> None:
        if isinstance(message, bytes):
            self._on_frame(parse_audio_frame(message), now_s)
            return
        match parse_server_event(message):
            case SessionCreated(session=session) | SessionUpdated(session=session):
                self._updates.pop(next(iter(self._updates))).set_result(session)
            case ResponseCreated(response=response) if self._waiting:
                speech = self._waiting.popleft()
                self._active[response.id] = speech
                speech.on_created(response)
            case OutputAudioStarted(response_id=key) as started if key in self._active:
                self._active[key].on_started(started)
            case OutputAudioDone(response_id=key) as done if key in self._active:
                self._active[key].on_audio_done(done, now_s)
            case ResponseDone(response=response) if response.id in self._active:
                self._active.pop(response.id).on_done(response, now_s)
            case ErrorEvent(error=detail):
                self._on_error(detail)

    def _on_frame(self, frame: AudioFrame, now_s: float) -> None:
        """The one place where frames of a response that is over are dropped."""
        for speech in self._active.values():
            response = speech.response
            if response is not None and is_current(frame.response_number, response.number):
                speech.on_frame(frame, now_s)
                return
        self.n_stale_frames += 1

    def _on_error(self, detail: ErrorDetail) -> None:
        error = RefusedError(detail.code, detail.message, detail.param)
        update = self._updates.pop(detail.event_id or "", None)
        speeches = [*self._waiting, *self._active.values()]
        speech = next((one for one in speeches if one.key == detail.event_id), None)
        if update is not None:
            update.set_exception(error)
        elif speech is None:
            _logger.warning("the server says: %s (%s)", detail.message, detail.code)
        elif speech in self._waiting:
            self._waiting.remove(speech)
            speech.fail(error)
        else:
            # Half of a text must not be spoken as if it were the whole.
            task = asyncio.create_task(speech.cancel())
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)
            task.add_done_callback(lambda _: speech.fail(error))


class SyncSpeech:
    """Blocking form of `Speech`: iterate it for PCM."""

    def __init__(self, speech: Speech, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._speech = speech
        self._run = run
        self._pcm = aiter(speech)

    def __iter__(self) -> Iterator[Pcm]:
        """Decoded samples `(n,)` float32. Raises: `ClientError` kinds."""
        while (pcm := self._run(_next_or_none(self._pcm))) is not None:
            yield pcm

    def cancel(self) -> None:
        """See `Speech.cancel`."""
        self._run(self._speech.cancel())

    @property
    def sample_rate_hz(self) -> int:
        """See `Speech.sample_rate_hz`."""
        return self._speech.sample_rate_hz

    @property
    def result(self) -> SpeechResult:
        """See `Speech.result`."""
        return self._speech.result


class SyncSpeechClient:
    """Blocking form of `SpeechClient`, which it runs on an event loop in a thread of its own."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        session: SessionPatch | None = None,
        api_key: str | None = None,
    ) -> None:
        self._url = url
        self._session = session
        self._api_key = api_key
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="speech client", daemon=True)
        self._client: SpeechClient | None = None

    def __enter__(self) -> Self:
        """Connect. Raises: `ConnectError`, `RefusedError`."""
        self._thread.start()
        try:
            self._client = self._run(self._open())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        try:
            if self._client is not None:
                self._run(self._client.close())
        finally:
            self._stop_loop()

    def speak(
        self, text: str | Iterable[str], *, overrides: ResponsePatch | None = None
    ) -> SyncSpeech:
        """See `SpeechClient.speak`; deltas are drawn from `text` in a worker thread."""
        if self._client is None:
            raise ClientError("not connected; use `with SyncSpeechClient(...)`")
        source = text if isinstance(text, str) else _in_worker(text)
        speech = self._run(self._client.speak(source, overrides=overrides))
        return SyncSpeech(speech, self._run)

    async def _open(self) -> SpeechClient:
        client = SpeechClient(self._url, session=self._session, api_key=self._api_key)
        await client.connect()
        return client

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next_or_none(source: AsyncIterator[_T]) -> _T | None:
    return await anext(source, None)


async def _in_worker(deltas: Iterable[str]) -> AsyncIterator[str]:
    source = iter(deltas)
    while (delta := await asyncio.to_thread(next, source, None)) is not None:
        yield delta

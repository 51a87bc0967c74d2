"""One response as a client sees it: its text going out, its audio coming in, how it went.

Part of `realtime.client.speech`, which owns the socket; nothing here reads or opens one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from realtime.client.received_audio import Decoder, Pcm, ReceivedAudio
from realtime.events import (
    ClientEvent,
    InputTextAppend,
    InputTextEnd,
    OutputAudioDone,
    OutputAudioPlayout,
    OutputAudioStarted,
    ResponseCancel,
    ResponseCreate,
    ResponseInfo,
    ResponsePatch,
)
from realtime.frames import AudioFrame

Send = Callable[[ClientEvent], Awaitable[None]]
MakeDecoder = Callable[[int], Decoder]
_Received = tuple[AudioFrame | None, Pcm, float]
"""A frame (None: what was held back until the end), its samples, and when it came."""


class ClientError(Exception):
    """Base of what the client raises. The message is one line."""


class ConnectError(ClientError):
    """No server, or none that speaks this protocol, is at the URL.

    Args:
        message: what is wrong.
        status: HTTP status with which the handshake was answered; None if there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ConnectionLostError(ClientError):
    """The socket closed before the response was complete."""


class RefusedError(ClientError):
    """The server refused a message, or a response failed.

    Args:
        code: the server's stable name for the fault.
        message: what was wrong.
        param: the field at fault, if there is one.
        retry_after_s: when it may be tried again, if the server is overloaded.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechResult:
    """How a response went, seen from the client.

    Args:
        response: the server's last word on it: status, usage, its own timing.
        sample_rate_hz: of the samples; 0 if no audio came.
        n_samples: samples of the response, padding cut.
        n_packets: binary frames received.
        n_bytes: bytes in them, headers not counted.
        ttfa_s: first text sent to first audio frame received; None if no audio came.
        total_s: first text sent to the last audio frame received (to the end, if none came).
        n_gaps: frames that came later than a listener needed them.
        gap_s: silence that such a listener heard.
    """

    response: ResponseInfo
    sample_rate_hz: int
    n_samples: int
    n_packets: int
    n_bytes: int
    ttfa_s: float | None
    total_s: float
    n_gaps: int
    gap_s: float

    @property
    def audio_s(self) -> float:
        """Seconds of audio."""
        return self.n_samples / self.sample_rate_hz if self.sample_rate_hz else 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of waiting per second of audio, first text to last frame."""
        return self.total_s / self.audio_s if self.n_samples else None


class Speech:
    """One response: iterate it for PCM, or use `frames()` for what the wire carried.

    Made by `SpeechClient.speak`. The iteration ends with the response; then `result` is set.
    """

    def __init__(
        self, key: str, send: Send, make_decoder: MakeDecoder | None, clock: Callable[[], float]
    ) -> None:
        self.key = key
        self.response: ResponseInfo | None = None
        self._send = send
        self._make_decoder = make_decoder
        self._clock = clock
        self._queue: asyncio.Queue[_Received | None] = asyncio.Queue()
        self._is_asked = False
        self._is_answered = asyncio.Event()
        self._audio: ReceivedAudio | None = None
        self._error: ClientError | None = None
        self._result: SpeechResult | None = None
        self._sender: asyncio.Task[None] | None = None
        self._sent_s: float | None = None

    @property
    def started(self) -> OutputAudioStarted | None:
        """The form of the audio; None until it begins."""
        return None if self._audio is None else self._audio.started

    @property
    def audio(self) -> ReceivedAudio | None:
        """What has come of its audio; None until it begins."""
        return self._audio

    @property
    def sample_rate_hz(self) -> int:
        """Rate of the PCM in Hz. Raises: `ClientError` while no audio has come."""
        if self._audio is None:
            raise ClientError("no audio has come yet")
        return self._audio.started.sample_rate_hz

    @property
    def sent_s(self) -> float | None:
        """When its first text was sent, on the client's clock; None until then."""
        return self._sent_s

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._result is not None or self._error is not None

    @property
    def result(self) -> SpeechResult:
        """How it went. Raises: `ClientError` while it still goes on, or if it was lost."""
        if self._result is None:
            raise self._error or ClientError("the response is not complete yet")
        return self._result

    async def __aiter__(self) -> AsyncIterator[Pcm]:
        """Decoded samples `(n,)` float32, cut exactly. Raises: `ClientError` kinds."""
        async for _, pcm, _ in self._items():
            if len(pcm):
                yield pcm

    async def frames(self) -> AsyncIterator[AudioFrame]:
        """The frames as they came, undecoded. Raises: `ClientError` kinds."""
        async for frame, _ in self.arrivals():
            yield frame

    async def arrivals(self) -> AsyncIterator[tuple[AudioFrame, float]]:
        """The frames, and when each came on the client's clock. Raises: `ClientError` kinds."""
        async for frame, _, received_s in self._items():
            if frame is not None:
                yield frame, received_s

    async def pcm(self) -> Pcm:
        """All samples `(n_samples,)` float32."""
        blocks = [block async for block in self]
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    async def wait(self) -> SpeechResult:
        """Let it end, without its audio."""
        async for _ in self._items():
            pass
        return self.result

    async def cancel(self) -> None:
        """Stop it: the iteration ends soon after, and `result` says cancelled."""
        await self._stop_sending()
        if not self._is_asked:
            self.fail(ClientError("cancelled before the server knew of it"))
        await self._is_answered.wait()
        if self.response is not None and not self.is_over:
            await self._send(ResponseCancel(response_id=self.response.id))

    async def report_playout(self, heard_s: float) -> None:
        """Tell the server how much of it the listener has heard."""
        if self.response is not None and not self.is_over:
            await self._send(
                OutputAudioPlayout(response_id=self.response.id, heard_ms=heard_s * 1000.0)
            )

    async def _items(self) -> AsyncIterator[_Received]:
        while (item := await self._queue.get()) is not None:
            yield item
        self._queue.put_nowait(None)  # whoever iterates again gets the same end
        if self._error is not None:
            raise self._error

    # What `SpeechClient` calls.

    def start_sending(
        self,
        text: str | AsyncIterable[str],
        overrides: ResponsePatch,
        turn: asyncio.Lock,
        on_asked: Callable[[Speech], None],
    ) -> None:
        """Send the text in the background, after the texts of earlier responses."""
        self._sender = asyncio.create_task(
            self._send_text(text, overrides, turn, on_asked), name=f"text of {self.key}"
        )

    async def _send_text(
        self,
        text: str | AsyncIterable[str],
        overrides: ResponsePatch,
        turn: asyncio.Lock,
        on_asked: Callable[[Speech], None],
    ) -> None:
        try:
            async with turn:
                self._is_asked = True
                on_asked(self)
                await self._send(ResponseCreate(event_id=self.key, response=overrides))
                if overrides.model_fields_set:
                    # Only overrides can be refused: without them the text need not wait.
                    await self._is_answered.wait()
                async for delta in _deltas(text):
                    if self._sent_s is None:
                        self._sent_s = self._clock()
                    await self._send(InputTextAppend(event_id=self.key, text=delta))
                await self._send(InputTextEnd(event_id=self.key))
        except ClientError as error:
            self.fail(error)

    async def _stop_sending(self) -> None:
        if self._sender is None or self._sender.done():
            return
        self._sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sender

    def on_created(self, response: ResponseInfo) -> None:
        """The server has taken it."""
        self.response = response
        self._is_answered.set()

    def on_started(self, event: OutputAudioStarted) -> None:
        """Its audio begins."""
        self._audio = ReceivedAudio(event, self._make_decoder)

    def on_frame(self, frame: AudioFrame, received_s: float) -> None:
        """A frame of its audio."""
        if self._audio is not None:
            self._queue.put_nowait((frame, self._audio.push(frame, received_s), received_s))

    def on_audio_done(self, event: OutputAudioDone, received_s: float) -> None:
        """No more frames."""
        if self._audio is not None:
            self._queue.put_nowait((None, self._audio.finish(event), received_s))

    def on_done(self, response: ResponseInfo, now_s: float) -> None:
        """The server's last word."""
        self.response = response
        audio = self._audio
        sent_s = now_s if self._sent_s is None else self._sent_s
        first_s = None if audio is None else audio.log.first_s
        last_s = None if audio is None else audio.log.last_s
        self._result = SpeechResult(
            response=response,
            sample_rate_hz=0 if audio is None else audio.started.sample_rate_hz,
            n_samples=0 if audio is None else audio.n_samples,
            n_packets=0 if audio is None else audio.n_packets,
            n_bytes=0 if audio is None else audio.n_bytes,
            ttfa_s=None if first_s is None else first_s - sent_s,
            total_s=(now_s if last_s is None else last_s) - sent_s,
            n_gaps=0 if audio is None else audio.log.n_gaps,
            gap_s=0.0 if audio is None else audio.log.gap_s,
        )
        if response.status == "failed" and self._error is None:
            self._error = _failure(response)
        self._queue.put_nowait(None)

    def fail(self, error: ClientError) -> None:
        """End it with `error`, unless it has ended."""
        if self.is_over:
            return
        self._error = error
        self._is_answered.set()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()
        self._queue.put_nowait(None)


async def _deltas(text: str | AsyncIterable[str]) -> AsyncIterator[str]:
    if isinstance(text, str):
        yield text
        return
    async for delta in text:
        yield delta


def _failure(response: ResponseInfo) -> RefusedError:
    details = response.status_details
    if details is None:
        return RefusedError("failed", "the response failed; the server gave no reason")
    if details.error is None:
        return RefusedError(
            details.reason, f"the response failed: {details.reason}", None, details.retry_after_s
        )
    return RefusedError(details.error.code, details.error.message, None, details.retry_after_s)

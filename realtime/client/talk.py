"""The client of the conversation lane: a voice in, the agent's voice out. Async.

Knows the wire form only; `parley talk`, the tests and the benchmark share it. What was heard is
kept in `turns` and `answers`; `until` waits for a state of them.

    async with TalkClient("ws://127.0.0.1:8765", rate_hz=16000) as client:
        exchange = await client.ask(question)  # float32 (n_samples,), sent at the pace of speech
        print(exchange.question, exchange.answer.text, exchange.ttfa_s)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from realtime.client.connect import lost_error, open_socket, speech_url
from realtime.client.inlet import Inlet
from realtime.client.received_audio import Pcm, ReceivedAudio, opus_decoder
from realtime.client.spoken import ClientError, MakeDecoder, RefusedError
from realtime.client.talked import Answer, Exchange, NoAnswerError, Turn, end_of_sound
from realtime.conversation.events import (
    CONVERSATION_SERVER_EVENTS,
    AnswerCreated,
    AnswerDone,
    ConversationServerEvent,
    ConversationUpdated,
    OutputCleared,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptDeltaEvent,
    TranscriptionCompleted,
)
from realtime.conversation.protocol import (
    ConversationInfo,
    ConversationPatch,
    ConversationUpdate,
)
from realtime.errors import ProtocolError
from realtime.events import BaseClientEvent, ErrorEvent, OutputAudioDone, OutputAudioStarted
from realtime.frames import (
    MEDIA_TYPES,
    AudioCodec,
    AudioFrame,
    encode_audio_frame,
    is_current,
    parse_audio_frame,
)
from realtime.protocol import REALTIME_PATH, SPEECH_PATH, encode_event

_Told = TypeVar("_Told")

FRAME_MS: Final = 20
CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
NO_TURN_TIMEOUT_S: Final = 5.0
"""After the question's end the server has said by then that somebody speaks, or never will."""


class TalkClient:
    """One conversation.

    Args:
        url: of the server, see `client_socket.speech_url`.
        rate_hz: of the samples that will be sent; one of `PcmRate`.
        api_key: that the server wants, if it wants one.
        codec: form of the answer's audio.
        sent_codec: form of what `send_payload` sends; `send_pcm` needs `pcm16`.
        instructions: of the session.
        on_sound: called with an answer and its next decoded samples.
        on_frame: called with an answer, its next frame, and when that came.
        on_cleared: called when an answer is to be silenced.
        make_decoder: of Opus packets.
        is_decoding: False leaves frames as they come, for `on_frame`: no samples, no first sound.

    Raises:
        pydantic.ValidationError: by `connect`: the server takes no such rate.
    """

    def __init__(
        self,
        url: str,
        *,
        rate_hz: int,
        api_key: str | None = None,
        codec: AudioCodec = "opus",
        sent_codec: AudioCodec = "pcm16",
        instructions: str | None = None,
        on_sound: Callable[[Answer, Pcm], None] | None = None,
        on_frame: Callable[[Answer, AudioFrame, float], None] | None = None,
        on_cleared: Callable[[Answer], None] | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        on_done: Callable[[Answer], None] | None = None,
        make_decoder: MakeDecoder | None = None,
        is_decoding: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = talk_url(url)
        self.rate_hz = rate_hz
        self.turns: list[Turn] = []
        self.answers: list[Answer] = []
        self.n_stale_frames = 0
        self.session: ConversationInfo | None = None
        self._api_key = api_key
        self._codec = codec
        self._sent_codec = sent_codec
        self._instructions = instructions
        self._on_sound = on_sound
        self._on_heard_frame = on_frame
        self._on_cleared = on_cleared
        self._on_turn = on_turn
        self._on_done = on_done
        self._make_decoder = (make_decoder or opus_decoder) if is_decoding else None
        self._clock = clock
        self._socket: ClientConnection | None = None
        self._inlet: Inlet | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._lost: ClientError | None = None
        self._n_sent = 0

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def connect(self) -> None:
        """Open the socket and settle the forms of audio. Raises: `ConnectError`, `RefusedError`."""
        session = _session(self.rate_hz, self._sent_codec, self._codec, self._instructions)
        self._socket = await open_socket(self.url, CONNECT_TIMEOUT_S, self._api_key)
        self._inlet = Inlet(self._socket)
        self._reader = asyncio.create_task(self._read(self._inlet))
        try:
            await self._send(ConversationUpdate(session=session))
            await self.until(lambda: self.session is not None, CONNECT_TIMEOUT_S)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the socket; nothing of it is left."""
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    @property
    def inlet(self) -> Inlet:
        """What it reads from, for a test that stops reading or loses the connection."""
        assert self._inlet is not None, "connected before"
        return self._inlet

    def now_s(self) -> float:
        """The clock of all times here."""
        return self._clock()

    @property
    def sent_ms(self) -> float:
        """Audio sent so far: what comes next is at this place for the server."""
        return self._n_sent * 1000 / self.rate_hz

    async def send_pcm(self, pcm: Pcm) -> None:
        """Send samples `(n,)` float32 as one frame of PCM16, now."""
        samples = np.round(np.clip(pcm, -1.0, 1.0) * 32767.0).astype("<i2")
        await self.send_payload(samples.tobytes(), len(pcm))

    async def send_payload(self, payload: bytes, n_samples: int) -> None:
        """Send one frame of `sent_codec` that holds `n_samples` at `rate_hz`, now."""
        assert self._socket is not None, "connected before"
        frame = AudioFrame(
            codec=self._sent_codec,
            response_number=0,
            media_time_ms=round(self.sent_ms),
            payload=payload,
        )
        self._n_sent += n_samples
        try:
            await self._socket.send(encode_audio_frame(frame))
        except ConnectionClosed as closed:
            raise self._lost or lost_error(closed) from closed

    async def send_paced(self, pcm: Pcm) -> float:
        """Send `pcm` at the pace of speech; gives the clock's time of its first sample."""
        step = self.rate_hz * FRAME_MS // 1000
        begun_s = self._clock()
        for start in range(0, len(pcm), step):
            # A microphone gives a frame when its last sample has been taken.
            due_s = begun_s + min(start + step, len(pcm)) / self.rate_hz
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            await self.send_pcm(pcm[start : start + step])
        return begun_s

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Send silence meanwhile, as an open microphone does."""
        quiet = np.zeros(self.rate_hz, np.float32)

        async def forever() -> None:
            while True:
                await self.send_paced(quiet)

        task = asyncio.create_task(forever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientError):
                await task

    async def ask(self, question: Pcm, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Exchange:
        """Say `question` `(n,)` float32 at the pace of speech; gives it with its whole answer.

        Of several answers (the question had long pauses) the last one that was not interrupted.

        Raises:
            NoAnswerError: nothing was heard in it, or no answer came in time.
            RefusedError: the server failed to answer.
        """
        n_turns, n_answers = len(self.turns), len(self.answers)
        begun_s = await self.send_paced(question)
        end_s = begun_s + end_of_sound(question) / self.rate_hz
        async with self.silence():
            try:
                await self.until(lambda: len(self.turns) > n_turns, NO_TURN_TIMEOUT_S)
            except TimeoutError:
                raise NoAnswerError("the server heard no speech in the question") from None
            try:
                await self.until(lambda: self._is_answered(n_turns, n_answers), timeout_s)
            except TimeoutError:
                raise NoAnswerError(f"no answer came within {timeout_s:g} s") from None
        answer = self.answers[-1]
        if answer.info.status == "failed":
            details = answer.info.status_details
            raise NoAnswerError(f"the answer failed: {details.model_dump() if details else ''}")
        heard = " ".join(turn.transcript or "" for turn in self.turns[n_turns:]).strip()
        return Exchange(question=heard, answer=answer, speech_end_s=end_s)

    def _is_answered(self, n_turns: int, n_answers: int) -> bool:
        turns, answers = self.turns[n_turns:], self.answers[n_answers:]
        if any(turn.stopped_s is None or turn.transcript is None for turn in turns):
            return False
        if all(not turn.transcript for turn in turns):
            raise NoAnswerError("the server heard no words in the question")
        if not answers or not answers[-1].is_done or answers[-1].info.status == "cancelled":
            return False
        # An answer to the first half of the question is none to the second.
        last_s = max(turn.stopped_s or 0.0 for turn in turns if turn.transcript)
        return answers[-1].created_s >= last_s

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until something of `turns` and `answers` holds.

        Raises:
            TimeoutError: it does not within `timeout_s`.
            ClientError: the connection is lost, or the server refused something.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                if self._lost is not None:
                    raise self._lost
                self._changed.clear()
                await self._changed.wait()

    async def _send(self, event: BaseClientEvent) -> None:
        assert self._socket is not None, "connected before"
        await self._socket.send(encode_event(event))

    async def _read(self, inlet: Inlet) -> None:
        lost: ClientError
        try:
            while True:
                message = await inlet.next()
                if isinstance(message, bytes):
                    self._on_frame(parse_audio_frame(message), self._clock())
                else:
                    self._on_event(_parse(message), self._clock())
                self._changed.set()
        except ConnectionClosed as closed:
            lost = lost_error(closed)
        except ProtocolError as error:
            lost = ClientError(f"the server does not keep to the protocol: {error.message}")
        except ClientError as error:
            lost = error
        self._lost = lost
        self._changed.set()

    def _on_event(self, event: ConversationServerEvent | None, now_s: float) -> None:
        match event:
            case ConversationUpdated(session=session):
                self.session = session
            case SpeechStartedEvent(item_id=item_id, audio_start_ms=start_ms):
                self.turns.append(Turn(item_id=item_id, started_s=now_s, start_ms=start_ms))
            case SpeechStoppedEvent(item_id=item_id, audio_end_ms=end_ms):
                for turn in self._turns_of(item_id):
                    turn.stopped_s, turn.end_ms = now_s, end_ms
            case TranscriptionCompleted(item_id=item_id, transcript=transcript):
                for turn in self._turns_of(item_id):
                    turn.transcript = transcript.strip()
                    _tell(self._on_turn, turn)
            case AnswerCreated(response=info):
                self.answers.append(Answer(info=info, created_s=now_s))
            case ErrorEvent(error=detail):
                raise RefusedError(detail.code, detail.message, detail.param)
            case _:
                self._on_answer_event(event, now_s)

    def _on_answer_event(self, event: ConversationServerEvent | None, now_s: float) -> None:
        response_id = getattr(event, "response_id", None)
        if isinstance(event, AnswerDone):
            response_id = event.response.id
        answer = next((one for one in self.answers if one.info.id == response_id), None)
        if answer is None:
            return
        match event:
            case TranscriptDeltaEvent(delta=delta):
                answer.text += delta
            case OutputAudioStarted():
                answer.audio = ReceivedAudio(event, self._make_decoder)
            case OutputAudioDone() if answer.audio is not None and answer.cleared_s is None:
                self._hear(answer, answer.audio.finish(event))
            case OutputCleared():
                answer.cleared_s = now_s
                _tell(self._on_cleared, answer)
            case AnswerDone(response=info):
                answer.info, answer.is_done = info, True
                _tell(self._on_done, answer)

    def _on_frame(self, frame: AudioFrame, now_s: float) -> None:
        for answer in reversed(self.answers):
            if is_current(frame.response_number, answer.info.number) and answer.audio is not None:
                answer.last_frame_s = now_s
                if self._on_heard_frame is not None:
                    self._on_heard_frame(answer, frame, now_s)
                if answer.cleared_s is None:
                    self._hear(answer, answer.audio.push(frame, now_s))
                else:
                    self.n_stale_frames += 1
                return
        self.n_stale_frames += 1

    def _hear(self, answer: Answer, pcm: Pcm) -> None:
        if len(pcm):
            answer.add(pcm)
            if self._on_sound is not None:
                self._on_sound(answer, pcm)

    def _turns_of(self, item_id: str) -> list[Turn]:
        return [turn for turn in self.turns if turn.item_id == item_id]


def talk_url(url: str) -> str:
    """The WebSocket URL of the conversation lane, see `speech_url`. Raises: `ConnectError`."""
    parts = urlsplit(speech_url(url))
    path = parts.path if parts.path != SPEECH_PATH else REALTIME_PATH
    return parts._replace(path=path).geturl()


def _session(
    rate_hz: int, sent_codec: AudioCodec, codec: AudioCodec, instructions: str | None
) -> ConversationPatch:
    given: dict[str, Any] = {} if instructions is None else {"instructions": instructions}
    sent: dict[str, Any] = {"type": MEDIA_TYPES[sent_codec]}
    if sent_codec == "pcm16":
        sent["rate"] = rate_hz
    given["audio"] = {
        "input": {"format": sent},
        "output": {"format": {"type": MEDIA_TYPES[codec]}},
    }
    return ConversationPatch.model_validate(given)


def _parse(message: str) -> ConversationServerEvent | None:
    """The event in a server's text message; None of a type that is not known."""
    try:
        raw = json.loads(message)
        model = CONVERSATION_SERVER_EVENTS.get(raw["type"])
        return None if model is None else model.model_validate(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("invalid_event", f"not an event: {error}") from error


def _tell(listener: Callable[[_Told], None] | None, told: _Told) -> None:
    if listener is not None:
        listener(told)

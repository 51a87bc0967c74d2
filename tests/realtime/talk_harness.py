"""A server that converses, with a scripted agent, ears that go by loudness, and a clock by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

from models.spec import ModelSpec
from realtime.agent.base import (
    FRAME_SAMPLES,
    HEARD_RATE_HZ,
    AudioDelta,
    ReplyDone,
    ReplyRequest,
    StageFailed,
    TextDelta,
    TranscriptCompleted,
    TranscriptDelta,
)
from realtime.app import make_app
from realtime.audio.coder import pcm16_bytes
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.conversation.conversing import Conversing
from realtime.frames import AudioFrame, encode_audio_frame
from realtime.gateway import Gateway
from realtime.playout import PlayoutClock
from realtime.protocol import REALTIME_PATH, SUBPROTOCOL
from realtime.server import Server
from tests.fakes import RATE_HZ, FakeEngine, fake_spec
from tests.realtime.harness import FAST_CONFIG, Client, until

LOUD = 0.3
VOICE_LEVEL = 0.002
SOFT = 0.004
"""-48 dB: a voice to these ears, but under the guard against echo."""


class ManualClock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class LoudnessDetector:
    """Takes what is loud for a voice."""

    def open_track(self) -> LoudnessDetector:
        return self

    async def probabilities(self, pcm: np.ndarray) -> Sequence[float]:
        loudness = np.abs(pcm.reshape(-1, FRAME_SAMPLES)).mean(axis=1)
        return [0.95 if one > VOICE_LEVEL else 0.01 for one in loudness]


class ScriptedJudge:
    """Says what the test has chosen."""

    def __init__(self, completeness: float = 0.9) -> None:
        self.completeness_said = completeness
        self.heard: list[np.ndarray] = []
        self.is_closed = False

    async def completeness(self, pcm: np.ndarray) -> float:
        self.heard.append(pcm)
        return self.completeness_said

    async def close(self) -> None:
        self.is_closed = True


class Line:
    """Events in order, pushed by the test or by the script."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.is_cancelled = False
        self._is_over = False

    def put(self, *events: Any) -> None:
        for event in events:
            self._events.put_nowait(event)

    async def next_event(self) -> Any:
        if self._is_over:
            return None
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        self._is_over = isinstance(event, ReplyDone | StageFailed | TranscriptCompleted)
        return event

    def cancel(self) -> None:
        self.is_cancelled = True
        self._events.put_nowait(None)


class ScriptedTranscription(Line):
    """A transcription of `pcm`."""

    def __init__(self, pcm: np.ndarray, language: str | None) -> None:
        super().__init__()
        self.pcm = pcm
        self.language = language

    def say(self, text: str) -> None:
        if text:
            self.put(TranscriptDelta(text=text))
        self.put(TranscriptCompleted(text=text, seconds=len(self.pcm) / HEARD_RATE_HZ))


class ScriptedReply(Line):
    """An answer that the test makes."""

    def __init__(self, request: ReplyRequest, playout: PlayoutClock) -> None:
        super().__init__()
        self.request = request
        self.playout = playout
        self.pauses: list[bool] = []
        self.reports: list[float] = []
        self._n_characters = 0

    def set_paused(self, is_paused: bool) -> None:
        self.pauses.append(is_paused)

    def report_playout(self, heard_s: float, now_s: float) -> None:
        self.reports.append(heard_s)

    def say(self, text: str, seconds: float) -> None:
        """Text, and its audio in pieces of 100 ms, evenly spoken."""
        self.put(TextDelta(text=text))
        if not self.request.wants_audio:
            return
        n_pieces = max(1, round(seconds * 10))
        for piece in range(1, n_pieces + 1):
            end = self._n_characters + round(len(text) * piece / n_pieces)
            pcm = np.full(RATE_HZ // 10, 0.1, dtype=np.float32)
            self.put(AudioDelta(pcm=pcm, text_end=end))
        self._n_characters += len(text)

    def end(self) -> None:
        self.put(ReplyDone(n_input_tokens=3, n_output_tokens=2, stage_ms={"text_model": 1.0}))


@dataclass
class ScriptedAgent:
    """Implements `realtime.agent.base.Agent`.

    Args:
        words: what each transcription says at once; None: the test says it.
        answer: what each reply says at once, 0.5 s of audio; None: the test says it.
        needs_transcript: answers the transcript.
    """

    words: str | None = "hello"
    answer: str | None = "Good day to you."
    needs_transcript: bool = True
    can_transcribe: bool = True
    transcribed_languages: tuple[str, ...] = ()
    calls_tools: bool = True
    can_recite: bool = True
    name: str = "scripted"
    spec: ModelSpec = field(default_factory=fake_spec)
    transcriptions: list[ScriptedTranscription] = field(default_factory=list)
    replies: list[ScriptedReply] = field(default_factory=list)
    fault: Exception | None = None
    is_closed: bool = False

    def transcribe(self, pcm: np.ndarray, *, language: str | None) -> ScriptedTranscription:
        one = ScriptedTranscription(pcm, language)
        self.transcriptions.append(one)
        if self.words is not None:
            one.say(self.words)
        return one

    def reply(self, request: ReplyRequest, playout: PlayoutClock) -> ScriptedReply:
        if self.fault is not None:
            raise self.fault
        one = ScriptedReply(request, playout)
        self.replies.append(one)
        if self.answer is not None:
            one.say(self.answer, 0.5)
            one.end()
        return one

    def reciting(self, text: str) -> ScriptedAgent | None:
        if not self.can_recite:
            return None
        return replace(self, answer=text)

    async def close(self) -> None:
        self.is_closed = True


class Talker(Client):
    """One socket of a conversation. Collects everything; `until_event` reads up to a type."""

    def __init__(self, socket: Any) -> None:
        super().__init__(socket)
        self.log: list[dict[str, Any] | AudioFrame] = []

    async def next(self) -> dict[str, Any] | AudioFrame:
        message = await self.receive()
        self.log.append(message)
        return message

    async def until_event(self, kind: str) -> dict[str, Any]:
        while True:
            message = await self.next()
            if isinstance(message, dict) and message["type"] == kind:
                return message
            assert not isinstance(message, dict) or message["type"] != "error", message

    async def until_error(self) -> dict[str, Any]:
        while True:
            message = await self.next()
            if isinstance(message, dict) and message["type"] == "error":
                return message["error"]

    async def done(self) -> dict[str, Any]:
        return (await self.until_event("response.done"))["response"]

    async def update(self, **session: Any) -> dict[str, Any]:
        await self.send("session.update", session=session)
        return (await self.until_event("session.updated"))["session"]

    async def push_to_talk(self) -> dict[str, Any]:
        return await self.update(audio=PUSH_TO_TALK)

    async def hear(self, *parts: tuple[float, float], piece_ms: int = 100) -> None:
        """Send parts of (loudness, ms) as PCM16 frames at 16 kHz."""
        samples = [np.full(round(ms * 16), level, np.float32) for level, ms in parts]
        await self.send_pcm(np.concatenate(samples), piece_ms)

    async def send_pcm(self, pcm: np.ndarray, piece_ms: int = 100) -> None:
        step = 16 * piece_ms
        for start in range(0, len(pcm), step):
            await self.send_frame("pcm16", pcm16_bytes(pcm[start : start + step]))

    async def send_frame(self, codec: Any, payload: bytes) -> None:
        frame = AudioFrame(codec=codec, response_number=0, media_time_ms=0, payload=payload)
        await self.socket.send(encode_audio_frame(frame))

    async def turn(self, speech_ms: float = 640) -> None:
        """A whole turn: speech, then silence enough."""
        await self.hear((LOUD, speech_ms), (0.0, 640))

    async def write(self, text: str, **fields: Any) -> dict[str, Any]:
        """Put a written message into the conversation."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content, **fields}
        await self.send("conversation.item.create", item=item)
        return (await self.until_event("conversation.item.done"))["item"]

    async def settle(self) -> None:
        """Wait until the server has looked at everything sent so far."""
        await self.send("conversation.item.retrieve", item_id="nobody", event_id="settle")
        while (await self.until_error())["event_id"] != "settle":
            pass

    @property
    def types(self) -> list[str]:
        """Types of the events so far; a run of audio frames is one `audio`."""
        names: list[str] = []
        for message in self.log:
            name = "audio" if isinstance(message, AudioFrame) else message["type"]
            if name != "audio" or names[-1:] != ["audio"]:
                names.append(name)
        return names

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.log if isinstance(one, dict) and one["type"] == kind]

    def frames(self, number: int) -> list[AudioFrame]:
        return [
            one for one in self.log if isinstance(one, AudioFrame) and one.response_number == number
        ]


PUSH_TO_TALK = {"input": {"format": {"type": "audio/pcm", "rate": 16000}, "turn_detection": None}}
HANDS_FREE = {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}


@dataclass
class Talk:
    """A running server and what is behind it."""

    server: Server
    agent: Any
    clock: Any
    port: int

    @asynccontextmanager
    async def client(
        self, *, max_queue: int | None = None, **session: Any
    ) -> AsyncIterator[Talker]:
        """A conversation, whose session is changed first (default: PCM16 in at 16 kHz)."""
        url = f"ws://127.0.0.1:{self.port}{REALTIME_PATH}"
        async with connect(
            url, compression=None, proxy=None, subprotocols=[SUBPROTOCOL], max_queue=max_queue
        ) as socket:
            talker = Talker(socket)
            talker.session = (await talker.event("session.created"))["session"]
            talker.session = await talker.update(**(session or {"audio": HANDS_FREE}))
            talker.log.clear()
            yield talker

    def sample(self, name: str, **labels: str) -> float:
        registry = self.server.gateway.metrics.registry
        return registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def talk(
    agent: Any = None,
    *,
    config: GatewayConfig = FAST_CONFIG,
    detector: Any = None,
    judge: Any = None,
    make_agent: Callable[[Gateway], Any] | None = None,
    engine: Any = None,
    relay: EventRelay | None = None,
    clock: Any = None,
) -> AsyncIterator[Talk]:
    """A server on a free port that converses. At the end nothing of it may be left."""
    relay = relay or EventRelay()
    engine = engine or FakeEngine(relay)
    clock = clock or ManualClock()
    gateway = Gateway(
        {"fake": engine}, {"fake": relay}, replace(config, port=0), clock=clock, seed=1
    )
    agent = agent or (ScriptedAgent() if make_agent is None else make_agent(gateway))
    conversing = Conversing(
        agents={agent.name: agent}, detector=detector or LoudnessDetector(), judge=judge
    )
    server = Server(make_app(gateway, conversing))
    port = await server.startup()
    try:
        yield Talk(server, agent, clock, port)
        await until(lambda: not relay.n_streams)
    finally:
        await server.shutdown()
        assert getattr(agent, "is_closed", True), "agents are closed with the server"
        assert getattr(judge, "is_closed", True), "and so is the judge"
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not {task.get_name() for task in others if not task.get_name().startswith("Task-")}

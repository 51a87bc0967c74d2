"""A server that does as it is told: the page's files, and a `/v1/realtime` without models.

Its ears are an energy threshold, its answers are tones. A test chooses what it says, how fast it
sends, and when it breaks; the real server would not misbehave on demand.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from realtime.audio.coder import pcm16_bytes
from realtime.audio.opus import OpusDecoder, OpusEncoder
from realtime.frames import AudioFrame, encode_audio_frame, parse_audio_frame

WEB_DEMO = Path(__file__).parents[2] / "web_demo"
RATE_HZ = 24_000
PACKET_SAMPLES = RATE_HZ // 50
PACKET_MS = 20
LOUD = 0.05
SILENT_FRAMES = 25
"""Half a second of silence ends a turn."""
MS_PER_CHARACTER = 60
LIMITS = {"max_message_bytes": 1 << 20, "max_messages_per_s": 400}


@dataclass
class Script:
    """What the server does next; tests change it between turns."""

    answer: str = "The capital of France is Paris."
    transcript: str = "What is the capital of France?"
    first_audio_s: float = 0.1
    pace: float = 4.0
    """Audio seconds sent in a second."""
    hold_at_ms: int | None = None
    """Where in an answer nothing comes for a second."""
    fail_with: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    """Everything the page has sent as text."""
    n_frames: int = 0
    tasks: list[str] = field(default_factory=lambda: ["speak", "converse"])
    codecs: set[str] = field(default_factory=set)
    n_sessions: int = 0
    refuses: bool = False
    sockets: set[WebSocket] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop | None = None

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """Events of this type from the page."""
        return [event for event in self.events if event["type"] == kind]

    def break_off(self) -> None:
        """Close every socket as a crash would."""
        assert self.loop is not None, "it runs"
        for socket in list(self.sockets):
            asyncio.run_coroutine_threadsafe(socket.close(1011), self.loop).result(10)


class ScriptedSession:
    """One socket."""

    def __init__(self, socket: WebSocket, script: Script) -> None:
        self.socket = socket
        self.script = script
        self.output = {"type": "audio/opus"}
        self.detection: dict[str, Any] | None = {"type": "server_vad"}
        self.numbers = itertools.count(1)
        self.items = itertools.count(1)
        self.answering: asyncio.Task[None] | None = None
        self.active: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.decoder = OpusDecoder(sample_rate_hz=48_000)
        self.n_silent = 0
        self.n_loud = 0
        self.speaking_item: str | None = None
        self.heard_ms = 0

    async def run(self) -> None:
        await self.send("session.created", session=self.session())
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                break
            if message.get("bytes"):
                await self.on_audio(parse_audio_frame(message["bytes"]))
            else:
                event = json.loads(message["text"])
                self.script.events.append(event)
                await self.on_event(event)
        if self.answering is not None:
            self.answering.cancel()

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_text(json.dumps({"type": kind, "event_id": "e", **fields}))

    def session(self) -> dict[str, Any]:
        return {
            "id": "s",
            "model": "scripted",
            "audio": {
                "input": {"format": {"type": "audio/opus"}, "turn_detection": self.detection},
                "output": {"format": self.output, "voice": "ada"},
            },
            "limits": LIMITS,
        }

    async def on_event(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "session.update":
            audio = event["session"].get("audio", {})
            self.detection = audio.get("input", {}).get("turn_detection", self.detection)
            self.output = audio.get("output", {}).get("format", self.output)
            await self.send("session.updated", session=self.session())
        elif kind == "response.create":
            await self.answer()
        elif kind == "response.cancel":
            await self.stop("client_cancelled")
        elif kind == "input_audio_buffer.commit":
            await self.hear(f"item_{next(self.items)}")

    async def on_audio(self, frame: AudioFrame) -> None:
        self.script.n_frames += 1
        self.script.codecs.add(frame.codec)
        self.heard_ms += PACKET_MS
        if frame.codec == "opus":
            pcm = self.decoder.decode(frame.payload)
        else:
            pcm = np.frombuffer(frame.payload, "<i2") / 32768
        if self.detection is None:
            return
        is_loud = float(np.abs(pcm).max()) > LOUD
        self.n_loud = self.n_loud + 1 if is_loud else 0
        self.n_silent = 0 if is_loud else self.n_silent + 1
        if self.speaking_item is None and self.n_loud >= 5:
            self.speaking_item = f"item_{next(self.items)}"
            await self.send(
                "input_audio_buffer.speech_started",
                item_id=self.speaking_item,
                audio_start_ms=self.heard_ms - 100,
            )
            await self.stop("turn_detected")
        elif self.speaking_item is not None and self.n_silent >= SILENT_FRAMES:
            item_id, self.speaking_item = self.speaking_item, None
            await self.send(
                "input_audio_buffer.speech_stopped",
                item_id=item_id,
                audio_end_ms=self.heard_ms - SILENT_FRAMES * PACKET_MS,
            )
            await self.hear(item_id)
            await self.answer()

    async def hear(self, item_id: str) -> None:
        await self.send("input_audio_buffer.committed", item_id=item_id, previous_item_id=None)
        await self.send(
            "conversation.item.input_audio_transcription.completed",
            item_id=item_id,
            content_index=0,
            transcript=self.script.transcript,
            usage={"type": "duration", "seconds": 1.0},
        )

    async def stop(self, reason: str) -> None:
        if self.answering is not None:
            self.answering.cancel()
            self.answering = None
        if self.active is not None:
            response, self.active = self.active, None
            details = {"type": "cancelled", "reason": reason}
            await self.send(
                "response.done",
                response={**response, "status": "cancelled", "status_details": details},
            )
        if self.last is not None:
            await self.send("output_audio_buffer.cleared", response_id=self.last["id"])

    async def answer(self) -> None:
        number = next(self.numbers)
        self.active = self.last = {"id": f"r_{number}", "number": number, "status": "in_progress"}
        await self.send("response.created", response=self.active)
        self.answering = asyncio.create_task(self.speak(self.active))

    async def speak(self, response: dict[str, Any]) -> None:
        script, text = self.script, self.script.answer
        place = {"response_id": response["id"], "output_index": 0}
        item = {"id": f"item_{next(self.items)}", "type": "message", "role": "assistant"}
        if script.fail_with is not None:
            error = {"type": "server_error", "code": "stage_failed", "message": script.fail_with}
            details = {"type": "failed", "error": error}
            await self.finish({**response, "status": "failed", "status_details": details})
            return
        await self.send("response.output_item.added", item=item, **place)
        spot = {**place, "item_id": item["id"], "content_index": 0}
        for word in text.split(" "):
            await self.send("response.output_audio_transcript.delta", delta=word + " ", **spot)
        await asyncio.sleep(script.first_audio_s)
        n_packets = len(text) * MS_PER_CHARACTER // PACKET_MS
        is_opus = self.output["type"] == "audio/opus"
        encoder = OpusEncoder(sample_rate_hz=RATE_HZ, bitrate_bps=32_000, complexity=5)
        rate_hz = RATE_HZ if is_opus else self.output["rate"]
        await self.send(
            "response.output_audio.started",
            response_id=response["id"],
            response_number=response["number"],
            codec="opus" if is_opus else "pcm16",
            sample_rate_hz=rate_hz,
            packet_ms=PACKET_MS,
            pre_skip_samples=encoder.pre_skip_samples if is_opus else 0,
            channels=1,
        )
        n_samples = rate_hz * PACKET_MS // 1000
        for idx in range(n_packets):
            at = np.arange(idx * n_samples, (idx + 1) * n_samples) / rate_hz
            pcm = (0.3 * np.sin(2 * np.pi * 440 * at)).astype(np.float32)
            payload = encoder.encode(pcm) if is_opus else pcm16_bytes(pcm)
            frame = AudioFrame(
                codec="opus" if is_opus else "pcm16",
                response_number=response["number"],
                media_time_ms=idx * PACKET_MS,
                payload=payload,
            )
            await self.socket.send_bytes(encode_audio_frame(frame))
            if idx % 5 == 4:
                end_ms = (idx + 1) * PACKET_MS
                n_characters = min(len(text), end_ms // MS_PER_CHARACTER)
                await self.send(
                    "response.output_audio.mark", audio_ms=end_ms, n_characters=n_characters, **spot
                )
            if idx * PACKET_MS == script.hold_at_ms:
                await asyncio.sleep(1)
            await asyncio.sleep(PACKET_MS / 1000 / script.pace)
        total = n_packets * n_samples - (encoder.pre_skip_samples if is_opus else 0)
        await self.send(
            "response.output_audio.done",
            response_id=response["id"],
            n_samples=total,
            duration_ms=total / rate_hz * 1000,
            n_packets=n_packets,
        )
        await self.finish({**response, "status": "completed"})

    async def finish(self, response: dict[str, Any]) -> None:
        self.active = self.answering = None
        await self.send("response.done", response=response)


@contextmanager
def running_scripted_server() -> Iterator[tuple[str, Script]]:
    """Start it on a free loopback port in a thread; its address and its script."""
    script = Script()

    async def realtime(socket: WebSocket) -> None:
        script.loop = asyncio.get_running_loop()
        if script.refuses:
            await socket.close(1013)
            return
        await socket.accept("parley.v1")
        script.n_sessions += 1
        script.sockets.add(socket)
        try:
            await ScriptedSession(socket, script).run()
        except (WebSocketDisconnect, RuntimeError):
            pass  # it was broken off
        finally:
            script.sockets.discard(socket)

    async def models(_: Any) -> JSONResponse:
        voices = ["ada", "bob"]
        model = {"id": "scripted", "tasks": script.tasks, "voices": voices}
        return JSONResponse({"data": [model]})

    async def ready(_: Any) -> JSONResponse:
        return JSONResponse({"ready": True, "stopping": False, "models": {}})

    app = Starlette(
        routes=[
            WebSocketRoute("/v1/realtime", realtime),
            Route("/v1/models", models),
            Route("/readyz", ready),
            Mount("/", StaticFiles(directory=WEB_DEMO, html=True)),
        ]
    )
    config = uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="scripted server")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the scripted server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", script
    finally:
        server.should_exit = True
        thread.join(30)

"""`parley say`: one text through a server, to the sound device or a file, and what it took.

Runs on an event loop; devices and files are served in worker threads. Knows the client only: who
starts a server, if one is started, is the command line's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from realtime.audio.files import check_target, write_audio
from realtime.client.received_audio import Pcm
from realtime.client.speech import Speech, SpeechClient, SpeechResult
from realtime.events import OptionValue, OutputPatch, SessionPatch
from realtime.frames import AudioCodec
from realtime.terminal.sound import NoSoundError, Player, open_player


@dataclass(frozen=True, slots=True, kw_only=True)
class SayRequest:
    """What to say, how, and where to.

    Args:
        text: to speak.
        model: None takes the server's default; the same for voice and language.
        voice: one of the model's.
        language: one of the model's.
        options: of the model.
        codec: on the wire; None takes PCM16 for a file (encoded once) and Opus for the device.
        target: file to write; None plays.
    """

    text: str
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    options: dict[str, OptionValue]
    codec: AudioCodec | None = None
    target: Path | None = None

    def session(self) -> SessionPatch:
        """The settings of a session for it; what is not set is left out."""
        if self.target is None:
            output = OutputPatch(codec=self.codec or "opus")
        else:
            # Nobody listens to a file while it is written: it need not come at the pace of speech.
            output = OutputPatch(codec=self.codec or "pcm16", pace="fast")
        settings: dict[str, object] = {"output": output}
        for name in ("model", "voice", "language", "options"):
            value = getattr(self, name)
            if value:
                settings[name] = value
        return SessionPatch.model_validate(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SayReport:
    """How it went.

    Args:
        url: of the server.
        model: that spoke.
        voice: that spoke, if the model has voices.
        codec: on the wire.
        sample_rate_hz: of the samples.
        ttfa_ms: first text sent to first audio frame received; None: nothing was to be said.
        audio_s: length of the speech.
        real_time_factor: seconds until the last frame for each second of speech; under 1 is
            faster than real time.
        n_packets: audio frames.
        n_gaps: frames that came later than a listener needed them.
        status: `completed`, `incomplete` (cut by a limit) or `cancelled`.
        file: that was written.
        is_played: whether it was played.
        note: why it was not heard, if so.
    """

    url: str
    model: str
    voice: str | None
    codec: str
    sample_rate_hz: int
    ttfa_ms: float | None
    audio_s: float
    real_time_factor: float | None
    n_packets: int
    n_gaps: int
    status: str
    file: str | None
    is_played: bool
    note: str

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=2)


async def say(url: str, request: SayRequest, api_key: str | None = None) -> SayReport:
    """Speak `request.text` through the server at `url`, which may want a key.

    Raises:
        ClientError: no server, or it refuses.
        AudioFileError: the file cannot be written; checked before anything is said.
    """
    if request.target is not None:
        check_target(request.target)
    async with SpeechClient(url, session=request.session(), api_key=api_key) as client:
        speech = await client.speak(request.text)
        note = ""
        if request.target is None:
            note = await _play(speech)
        else:
            pcm = await speech.pcm()
            if len(pcm):
                await asyncio.to_thread(write_audio, request.target, pcm, speech.sample_rate_hz)
        return _report(client, request, speech.result, note)


async def _play(speech: Speech) -> str:
    """Play it while it comes. Gives why it was not heard; empty if it was."""
    blocks: AsyncIterator[Pcm] = aiter(speech)
    first = await anext(blocks, None)
    if first is None:
        return ""
    try:
        player = await asyncio.to_thread(open_player, speech.sample_rate_hz)
    except NoSoundError as error:
        await speech.wait()
        return str(error)
    queue: SimpleQueue[Pcm | None] = SimpleQueue()
    stop = Event()
    playing = asyncio.create_task(asyncio.to_thread(_play_queue, player, queue, stop))
    try:
        queue.put(first)
        async for pcm in blocks:
            queue.put(pcm)
    except BaseException:
        stop.set()
        raise
    finally:
        queue.put(None)
    try:
        await playing
    except NoSoundError as error:
        return str(error)
    return ""


def _play_queue(player: Player, queue: SimpleQueue[Pcm | None], stop: Event) -> None:
    with player:
        while (pcm := queue.get()) is not None:
            if stop.is_set():
                raise NoSoundError("stopped")
            player.write(pcm)


def _report(
    client: SpeechClient, request: SayRequest, result: SpeechResult, note: str
) -> SayReport:
    assert client.session is not None, "connected, else nothing would have been said"
    is_heard = result.n_samples > 0
    return SayReport(
        url=client.url,
        model=client.session.model,
        voice=client.session.voice,
        codec=client.session.output.codec,
        sample_rate_hz=result.sample_rate_hz,
        ttfa_ms=None if result.ttfa_s is None else result.ttfa_s * 1000.0,
        audio_s=result.audio_s,
        real_time_factor=result.real_time_factor,
        n_packets=result.n_packets,
        n_gaps=result.n_gaps,
        status=result.response.status,
        file=str(request.target) if request.target is not None and is_heard else None,
        is_played=request.target is None and is_heard and not note,
        note=note if is_heard else "nothing in this text can be spoken",
    )

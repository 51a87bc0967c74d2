"""`parley talk`: a conversation in the terminal, by microphone or from file to file.

Runs on an event loop; devices and files are served in worker threads. Who starts a server, if one
is started, is the command line's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, get_args

import numpy as np

from realtime.audio.files import AudioFileError, check_target, read_audio, write_audio
from realtime.audio.resample import Resampler
from realtime.client.received_audio import Pcm
from realtime.client.talk import TalkClient
from realtime.client.talked import Answer, Turn
from realtime.conversation.events import AnswerTiming
from realtime.conversation.protocol import PcmRate
from realtime.terminal.sound import NoSoundError, Player, open_player

MICROPHONE_HZ: Final = 16_000
FRAME_SAMPLES: Final = 320
PLAYED_HZ: Final = 24_000
BLOCK_SAMPLES: Final = 480
"""20 ms: what still plays after an interruption, beside the device's own buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkReport:
    """How an exchange went. Times in ms.

    Args:
        url: of the server.
        model: that answered.
        question: as it was heard.
        answer: as it was spoken.
        ttfa_ms: end of speech to the first audible sound; None: no sound.
        stages_ms: where it went, see `stages_ms`.
        audio_s: length of the answer.
        status: `completed`, or `incomplete` (cut by a limit).
        file: that was written.
    """

    url: str
    model: str
    question: str
    answer: str
    ttfa_ms: float | None
    stages_ms: dict[str, float] = field(default_factory=dict)
    audio_s: float
    status: str
    file: str | None

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=2)


def read_question(path: Path) -> tuple[Pcm, int]:
    """The samples `(n,)` float32 of a file and their rate, which the lane takes.

    Raises:
        AudioFileError: it is missing or holds no audio.
    """
    pcm, rate_hz = read_audio(path)
    if not len(pcm):
        raise AudioFileError(f"{path} holds no audio")
    if rate_hz in get_args(PcmRate):
        return pcm, rate_hz
    resampler = Resampler(rate_hz, MICROPHONE_HZ)
    return np.concatenate([resampler.push(pcm), resampler.finish()]), MICROPHONE_HZ


async def talk_by_file(
    url: str, question: Path, target: Path | None, api_key: str | None = None
) -> TalkReport:
    """Ask what is in a file, at the pace of speech; write the answer to `target`.

    Raises:
        ClientError: no server, or it does not answer.
        AudioFileError: a file cannot be read or written; found before anything is asked.
    """
    if target is not None:
        check_target(target)
    pcm, rate_hz = await asyncio.to_thread(read_question, question)
    async with TalkClient(url, rate_hz=rate_hz, api_key=api_key) as client:
        exchange = await client.ask(pcm)
        answer = exchange.answer
        spoken = answer.pcm()
        if target is not None and len(spoken):
            await asyncio.to_thread(write_audio, target, spoken, answer.sample_rate_hz)
        is_written = target is not None and len(spoken) > 0
        return TalkReport(
            url=client.url,
            model=client.session.model if client.session else "",
            question=exchange.question,
            answer=answer.text,
            ttfa_ms=None if exchange.ttfa_s is None else round(exchange.ttfa_s * 1000, 1),
            stages_ms=stages_ms(exchange.answer.info.timing),
            audio_s=len(spoken) / answer.sample_rate_hz if len(spoken) else 0.0,
            status=answer.info.status,
            file=str(target) if is_written else None,
        )


def stages_ms(timing: AnswerTiming | None) -> dict[str, float]:
    """The server's own times by name, those that it passed. See `AnswerTiming`."""
    if timing is None:
        return {}
    named = {
        "endpoint": timing.endpoint_ms,
        "transcript": timing.transcript_ms,
        **timing.stage_ms,
        "first_audio": timing.first_audio_ms,
        "turn_end_to_socket": timing.ttfa_ms,
    }
    return {name: round(value, 1) for name, value in named.items() if value is not None}


async def talk_by_microphone(
    url: str, show: Callable[[str, str], None], api_key: str | None = None
) -> None:
    """Converse until cancelled; `show(who, text)` is given every turn.

    The terminal has no echo cancellation: the loudspeaker's sound may come back by the microphone.

    Raises:
        NoSoundError: no microphone or no loudspeaker.
        ClientError: no server, or the connection is lost.
    """
    device = await asyncio.to_thread(_microphone)
    player = await asyncio.to_thread(open_player, PLAYED_HZ)
    speaker = _Loudspeaker(player)

    def on_turn(turn: Turn) -> None:
        if turn.transcript:
            show("you", turn.transcript)

    def on_done(answer: Answer) -> None:
        show("parley", answer.text + (" ..." if answer.cleared_s is not None else ""))

    client = TalkClient(
        url,
        rate_hz=MICROPHONE_HZ,
        api_key=api_key,
        on_sound=speaker.on_sound,
        on_cleared=lambda _: speaker.clear(),
        on_turn=on_turn,
        on_done=on_done,
    )
    playing = asyncio.create_task(asyncio.to_thread(speaker.run))
    try:
        async with client:
            show("", "Speak; Ctrl-C ends. Use headphones: a loudspeaker is heard as if you spoke.")
            sending = asyncio.create_task(_send_microphone(client, device))
            lost = asyncio.create_task(client.until(lambda: False, 24 * 3600.0))
            try:
                done, _ = await asyncio.wait(
                    {sending, lost, playing}, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
            finally:
                sending.cancel()
                lost.cancel()
                await asyncio.gather(sending, lost, return_exceptions=True)
    finally:
        speaker.stop()
        await asyncio.wait({playing})


async def _send_microphone(client: TalkClient, device: Any) -> None:  # noqa: ANN401 - optional
    loop = asyncio.get_running_loop()
    frames: asyncio.Queue[Pcm] = asyncio.Queue()

    def on_frame(block: Pcm, *_: object) -> None:
        loop.call_soon_threadsafe(frames.put_nowait, block[:, 0].copy())

    stream = device.InputStream(
        samplerate=MICROPHONE_HZ,
        channels=1,
        dtype="float32",
        blocksize=FRAME_SAMPLES,
        callback=on_frame,
    )
    with stream:
        while True:
            await client.send_pcm(await frames.get())


class _Loudspeaker:
    """Plays what it is given, in a thread of its own, until it is told to be silent."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._blocks: SimpleQueue[Pcm | None] = SimpleQueue()
        self._resampler: tuple[str, Resampler] | None = None

    def on_sound(self, answer: Answer, pcm: Pcm) -> None:
        """Play samples of an answer after those before."""
        if self._resampler is None or self._resampler[0] != answer.info.id:
            self._resampler = (answer.info.id, Resampler(answer.sample_rate_hz, PLAYED_HZ))
        played = self._resampler[1].push(pcm)
        for start in range(0, len(played), BLOCK_SAMPLES):
            self._blocks.put(played[start : start + BLOCK_SAMPLES])

    def clear(self) -> None:
        """Throw away what has not been played."""
        with contextlib.suppress(Empty):
            while True:
                self._blocks.get_nowait()

    def stop(self) -> None:
        """End `run`."""
        self.clear()
        self._blocks.put(None)

    def run(self) -> None:
        """Play until `stop`. Blocks."""
        with self._player:
            while (pcm := self._blocks.get()) is not None:
                self._player.write(pcm)


def _microphone() -> Any:  # noqa: ANN401 - optional package
    """The `sounddevice` module, if it finds an input. Raises: `NoSoundError`."""
    reason = "install sounddevice and PortAudio, or ask from a file with: --in question.wav"
    try:
        device = importlib.import_module("sounddevice")
        device.query_devices(kind="input")
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise NoSoundError(f"no microphone here; {reason}") from error
    except Exception as error:  # PortAudioError, which only that package can name
        if type(error).__name__ != "PortAudioError":
            raise
        raise NoSoundError(f"no microphone here; {reason}") from error
    return device

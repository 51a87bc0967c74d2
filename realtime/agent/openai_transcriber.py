"""Speech to text by an OpenAI-compatible endpoint (`POST audio/transcriptions`). Event loop only.

Silence and noise never leave this machine: the voice activity network looks first, in a worker.
"""

from __future__ import annotations

import io
import wave
from collections.abc import AsyncGenerator
from typing import Any, Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import (
    HEARD_RATE_HZ,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptEvent,
    Transcription,
)
from realtime.agent.endpoint import Answer, Endpoint, bad_response
from realtime.agent.loops import without_loops
from realtime.agent.speech_span import Probabilities, speech_windows
from realtime.agent.transcriber import RunningTranscription, check_spoken
from realtime.audio.coder import pcm16_bytes
from realtime.workers import Workers

MAX_SPEECH_S: Final = 600.0
"""Of one request; endpoints cut long audio themselves."""


class OpenAiTranscriber:
    """Implements `realtime.agent.transcriber.Transcriber`.

    Args:
        endpoint: that is asked.
        probabilities: of speech.
        workers: where they are computed.
    """

    def __init__(self, endpoint: Endpoint, probabilities: Probabilities, workers: Workers) -> None:
        self._endpoint = endpoint
        self._probabilities = probabilities
        self._workers = workers
        self.name = endpoint.config.model
        self.licence = ""
        self.languages: tuple[str, ...] = ()

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """See `Transcriber.transcribe`."""
        return RunningTranscription(self._events(pcm, language))

    async def close(self) -> None:
        """Close idle connections."""
        await self._endpoint.close()

    async def _events(self, pcm: Pcm, language: str | None) -> AsyncGenerator[TranscriptEvent]:
        text = ""
        for window in await self._workers.run(self._windows, pcm):
            form = {"model": self._endpoint.config.model, "stream": "true"}
            if (spoken := check_spoken(language, ())) is not None:
                form["language"] = spoken
            file = ("speech.wav", wav_bytes(window), "audio/wav")
            async with self._endpoint.post(
                "audio/transcriptions", form=form, files={"file": file}
            ) as answer:
                reader = _TranscriptReader(answer)
                while (piece := await reader.next_text()) is not None:
                    text += piece
                    yield TranscriptDelta(text=piece)
        yield TranscriptCompleted(text=without_loops(text), seconds=len(pcm) / HEARD_RATE_HZ)

    def _windows(self, pcm: Pcm) -> list[Pcm]:
        return speech_windows(pcm, self._probabilities, max_s=MAX_SPEECH_S)


class _TranscriptReader:
    """Pieces of a transcript: streamed, or the whole from a server that does not stream.

    Args:
        answer: of the endpoint.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._has_come = False
        self._is_ended = False

    async def next_text(self) -> str | None:
        """The next piece; None at the end. Raises: `StageError`."""
        if self._is_ended:
            return None
        if not self._answer.is_event_stream:
            self._is_ended = True
            return _text(await self._answer.value(), "text").strip()
        while (event := await self._answer.next_event()) is not None:
            match event.get("type"):
                case "transcript.text.delta":
                    self._has_come = True
                    return _text(event, "delta")
                case "transcript.text.done":
                    self._is_ended = True
                    return None if self._has_come else _text(event, "text").strip()
        raise bad_response("the transcript broke off")


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise bad_response(f"no string {name!r}")
    return text


def wav_bytes(pcm: Pcm) -> bytes:
    """Float32 mono at `HEARD_RATE_HZ` as a WAV file of PCM16."""
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(np.dtype(np.int16).itemsize)
        file.setframerate(HEARD_RATE_HZ)
        file.writeframes(pcm16_bytes(pcm))
    return target.getvalue()

"""A whole recording to words with times: voices found, cut at pauses, transcribed piece by piece.

One piece of one recording is with the transcriber at a time, and nothing but that piece and a few
seconds behind it is held: conversations wait no longer for it than for each other. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.types import Pcm
from realtime.agent.base import (
    FRAME_SAMPLES,
    HEARD_RATE_HZ,
    Agent,
    StageFailed,
    TranscriptCompleted,
    VoiceTrack,
)
from realtime.agent.errors import StageError

VOICED: Final = 0.5
MARGIN_FRAMES: Final = 12
"""Kept before and behind a voice, 0.4 s: first and last sounds are soft."""
LONG_PAUSE_FRAMES: Final = 62
"""Two seconds always end a piece."""
PAUSE_FRAMES: Final = 25
"""0.8 s end a piece that is long enough to be understood without what follows."""
ENOUGH_FRAMES: Final = 156
"""Five seconds."""
MOST_FRAMES: Final = 780
"""25 s, the most that is transcribed at once."""
AROUND_FRAMES: Final = 2
"""Looked at on both sides of a place where running speech is cut."""
MIN_VOICED_FRAMES: Final = 3
STEP_SAMPLES: Final = 16 * FRAME_SAMPLES
"""Half a second: voices of a recording and of conversations are looked for in the same calls, and
a conversation must not wait for a long one."""
N_TRIES: Final = 30
"""Of one piece, while conversations keep the transcriber busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenPiece:
    """A part of a recording in which somebody speaks: where it is, and its samples."""

    start_s: float
    pcm: Pcm

    @property
    def end_s(self) -> float:
        """Where it ends."""
        return self.start_s + len(self.pcm) / HEARD_RATE_HZ


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardPiece:
    """What was said in a part of a recording."""

    start_s: float
    end_s: float
    text: str


class PieceCutter:
    """Cuts a recording at its pauses while it comes. Pure.

    What holds no voice is in no piece; a piece has at most `MOST_FRAMES` frames.
    """

    def __init__(self) -> None:
        self._pcm: Pcm = np.zeros(0, dtype=np.float32)
        self._voice: list[float] = []
        self._first_frame = 0

    def push(self, pcm: Pcm, voice: Sequence[float]) -> list[SpokenPiece]:
        """More whole frames, and how likely each holds a voice. Returns the pieces that ended."""
        self._pcm = np.concatenate([self._pcm, pcm])
        self._voice += voice
        return self._cut(is_final=False)

    def finish(self) -> list[SpokenPiece]:
        """What is left."""
        return self._cut(is_final=True)

    def _cut(self, *, is_final: bool) -> list[SpokenPiece]:
        pieces: list[SpokenPiece] = []
        while voiced := [n for n, one in enumerate(self._voice) if one >= VOICED]:
            start = max(0, voiced[0] - MARGIN_FRAMES)
            end = _end_of_piece(self._voice, voiced, start, is_final=is_final)
            if end is None:
                self._drop(start)
                return pieces
            if sum(n < end for n in voiced) >= MIN_VOICED_FRAMES:
                pieces.append(self._piece(start, end))
            self._drop(end)
        # The margin of a voice that may come.
        self._drop(max(0, len(self._voice) - MARGIN_FRAMES))
        return pieces

    def _piece(self, start: int, end: int) -> SpokenPiece:
        start_s = (self._first_frame + start) * FRAME_SAMPLES / HEARD_RATE_HZ
        pcm = self._pcm[start * FRAME_SAMPLES : end * FRAME_SAMPLES]
        return SpokenPiece(start_s=start_s, pcm=pcm)

    def _drop(self, n_frames: int) -> None:
        self._pcm = self._pcm[n_frames * FRAME_SAMPLES :]
        del self._voice[:n_frames]
        self._first_frame += n_frames


async def transcribe_recording(
    read: Callable[[], Awaitable[Pcm | None]],
    *,
    agent: Agent,
    track: VoiceTrack,
    language: str | None,
) -> AsyncGenerator[HeardPiece]:
    """What is said in a recording, in order; pieces without words are left out.

    Args:
        read: gives the next float32 mono samples at `HEARD_RATE_HZ`, None at the end.
        agent: that transcribes.
        track: finds voices; of this recording alone.
        language: that is spoken; None lets the agent find out.

    Raises:
        StageError: it cannot be transcribed.
    """
    cutter = PieceCutter()
    held: Pcm = np.zeros(0, dtype=np.float32)
    while (pcm := await read()) is not None:
        held = np.concatenate([held, pcm])
        whole, held = np.split(held, [len(held) // FRAME_SAMPLES * FRAME_SAMPLES])
        if len(whole):
            for piece in cutter.push(whole, await _voice(track, whole)):
                async for heard in _heard(piece, agent, language):
                    yield heard
    for piece in cutter.finish():
        async for heard in _heard(piece, agent, language):
            yield heard


async def _voice(track: VoiceTrack, pcm: Pcm) -> list[float]:
    voice: list[float] = []
    for start in range(0, len(pcm), STEP_SAMPLES):
        voice += await track.probabilities(pcm[start : start + STEP_SAMPLES])
    return voice


async def _heard(
    piece: SpokenPiece, agent: Agent, language: str | None
) -> AsyncGenerator[HeardPiece]:
    for n_tries in range(1, N_TRIES + 1):
        try:
            text = await _words(piece.pcm, agent, language)
        except StageError as fault:
            if fault.code != "overloaded" or n_tries == N_TRIES:
                raise
            await asyncio.sleep(fault.retry_after_s or 1.0)
            continue
        if text:
            yield HeardPiece(start_s=piece.start_s, end_s=piece.end_s, text=text)
        return


async def _words(pcm: Pcm, agent: Agent, language: str | None) -> str:
    transcription = agent.transcribe(pcm, language=language)
    text = ""
    try:
        while (event := await transcription.next_event()) is not None:
            if isinstance(event, StageFailed):
                raise StageError(event.code, event.message, event.retry_after_s)
            if isinstance(event, TranscriptCompleted):
                text = event.text
    finally:
        transcription.cancel()
    return text.strip()


def _end_of_piece(
    voice: Sequence[float], voiced: Sequence[int], start: int, *, is_final: bool
) -> int | None:
    """The frame before which a piece from `start` ends; None when more must come first."""
    last = voiced[0]
    for place in [*voiced, len(voice)]:
        pause = place - last - 1
        is_enough = last - start >= ENOUGH_FRAMES
        if pause >= LONG_PAUSE_FRAMES or (pause >= PAUSE_FRAMES and is_enough):
            return last + 1 + MARGIN_FRAMES
        # A pause that has begun may prove long enough: it is no place to cut yet.
        if place - start > MOST_FRAMES and place < len(voice):
            return _quietest(voice, start)
        last = place
    return min(voiced[-1] + 1 + MARGIN_FRAMES, len(voice)) if is_final else None


def _quietest(voice: Sequence[float], start: int) -> int:
    """The frame with the least voice around it in the last half of the longest piece."""
    part = np.pad(voice[start : start + MOST_FRAMES], AROUND_FRAMES, mode="edge")
    around = np.convolve(part, np.ones(2 * AROUND_FRAMES + 1), mode="valid")
    half = MOST_FRAMES // 2
    return start + half + int(around[half:].argmin())

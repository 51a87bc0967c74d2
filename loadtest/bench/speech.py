"""Figures of a speaking model, taken through the socket as any client would see them."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.bench.texts import LONG_SENTENCE, SENTENCE, STORY
from realtime.client.speech import RefusedError, SpeechClient, SpeechResult

PAUSE_S = 0.2
SETTLE_S = 15.0
OVERLOADED = "overloaded"
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttfa:
    """Time to the first audio frame at the client, with `n_others` streams being played.

    `n_playing` is how many of the others the server took; `n_refused` how many takes it refused.
    """

    n_others: int
    n_playing: int
    n_takes: int
    n_refused: int
    median_ms: float | None
    best_ms: float | None
    worst_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """`batch` streams as fast as they come.

    `real_time_factor` is wall seconds for each second that every stream speaks (under 1: all of
    them could be played), `audio_s_per_s` what the machine gives in all.
    """

    batch: int
    audio_s: float
    wall_s: float
    real_time_factor: float
    audio_s_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTime:
    """`n_streams` listeners at once. A gap is a frame that came after it should have sounded."""

    n_streams: int
    n_refused: int
    audio_s: float
    n_gaps: int
    gap_s: float
    n_streams_with_gaps: int
    worst_ttfa_ms: float


async def measure_ttfa(url: str, n_others: int, n_takes: int, tick: Tick) -> Ttfa:
    """Median over `n_takes` sentences while `n_others` listeners hear a story."""
    takes_ms: list[float] = []
    async with SpeechClient(url, is_decoding=False) as client, _listeners(url, n_others) as playing:
        await _speak(client, SENTENCE)
        for _ in range(n_takes):
            await asyncio.sleep(PAUSE_S)
            result = await _speak(client, SENTENCE)
            if result is not None and result.ttfa_s is not None:
                takes_ms.append(result.ttfa_s * 1000)
            tick()
        n_playing = len(playing)
    return Ttfa(
        n_others=n_others,
        n_playing=n_playing,
        n_takes=n_takes,
        n_refused=n_takes - len(takes_ms),
        median_ms=statistics.median(takes_ms) if takes_ms else None,
        best_ms=min(takes_ms, default=None),
        worst_ms=max(takes_ms, default=None),
    )


async def measure_throughput(url: str, batch: int, tick: Tick) -> Throughput:
    """`batch` clients say the same sentence at once and read as fast as it comes."""
    start_s = time.monotonic()
    results = await _all_speak(url, batch, LONG_SENTENCE)
    wall_s = time.monotonic() - start_s
    tick()
    audio_s = sum(result.audio_s for result in results)
    return Throughput(
        batch=len(results),
        audio_s=audio_s,
        wall_s=wall_s,
        real_time_factor=wall_s / (audio_s / len(results)),
        audio_s_per_s=audio_s / wall_s,
    )


async def measure_real_time(url: str, n_streams: int, tick: Tick) -> RealTime:
    """`n_streams` clients listen to a story."""
    results = await _all_speak(url, n_streams, STORY)
    tick()
    return RealTime(
        n_streams=n_streams,
        n_refused=n_streams - len(results),
        audio_s=sum(result.audio_s for result in results),
        n_gaps=sum(result.n_gaps for result in results),
        gap_s=sum(result.gap_s for result in results),
        n_streams_with_gaps=sum(result.n_gaps > 0 for result in results),
        worst_ttfa_ms=max((result.ttfa_s or 0.0) * 1000 for result in results),
    )


async def _all_speak(url: str, n_clients: int, text: str) -> list[SpeechResult]:
    """Results of those that the server took."""

    async def one() -> SpeechResult | None:
        async with SpeechClient(url, is_decoding=False) as client:
            return await _speak(client, text)

    results = await asyncio.gather(*(one() for _ in range(n_clients)))
    return [result for result in results if result is not None]


async def _speak(client: SpeechClient, text: str) -> SpeechResult | None:
    """One text to its end; None if the server has no room for it."""
    try:
        return await (await client.speak(text)).wait()
    except RefusedError as error:
        if error.code != OVERLOADED:
            raise
        return None


@asynccontextmanager
async def _listeners(url: str, n: int) -> AsyncIterator[set[int]]:
    """Keep up to `n` streams running, each heard in real time.

    Gives the numbers of those that have begun to sound; waits until all have, or for a while.
    """
    playing: set[int] = set()
    tasks = [asyncio.create_task(_listen(url, number, playing)) for number in range(n)]
    try:
        end_s = time.monotonic() + SETTLE_S
        while len(playing) < n and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()
        yield playing
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _listen(url: str, number: int, playing: set[int]) -> None:
    async with SpeechClient(url, is_decoding=False) as client:
        while True:
            speech = await client.speak(STORY)
            start_s = time.monotonic()
            media_s = 0.0
            try:
                async for frame in speech.frames():
                    if number not in playing:
                        playing.add(number)
                        start_s = time.monotonic()
                    media_s = frame.media_time_ms / 1000.0
            except RefusedError as error:
                playing.discard(number)
                if error.code != OVERLOADED:
                    raise
                await asyncio.sleep(1.0)
            # The next story follows when this one has been heard, as with a person.
            await asyncio.sleep(max(0.0, media_s - (time.monotonic() - start_s)))

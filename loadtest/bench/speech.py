"""Figures of a speaking model, taken through the socket as any client would see them."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadtest.bench.texts import SENTENCE, STORY
from realtime.client import SpeechClient, SpeechResult

PAUSE_S = 0.2
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttfa:
    """Time to the first audio frame at the client, with `n_others` streams being played."""

    n_others: int
    n_takes: int
    median_ms: float
    best_ms: float
    worst_ms: float


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
    audio_s: float
    n_gaps: int
    gap_s: float
    n_streams_with_gaps: int
    worst_ttfa_ms: float


async def measure_ttfa(url: str, n_others: int, n_takes: int, tick: Tick) -> Ttfa:
    """Median over `n_takes` sentences while `n_others` listeners hear a story."""
    async with SpeechClient(url, is_decoding=False) as client, _listeners(url, n_others):
        await (await client.speak(SENTENCE)).wait()
        takes_ms = []
        for _ in range(n_takes):
            await asyncio.sleep(PAUSE_S)
            result = await (await client.speak(SENTENCE)).wait()
            assert result.ttfa_s is not None, "a sentence gives audio"
            takes_ms.append(result.ttfa_s * 1000)
            tick()
    return Ttfa(
        n_others=n_others,
        n_takes=n_takes,
        median_ms=statistics.median(takes_ms),
        best_ms=min(takes_ms),
        worst_ms=max(takes_ms),
    )


async def measure_throughput(url: str, batch: int, tick: Tick) -> Throughput:
    """`batch` clients say the same sentences at once; the server must not hold streams back."""
    text = f"{SENTENCE} {SENTENCE} {SENTENCE}"
    start_s = time.monotonic()
    results = await _all_speak(url, batch, text)
    wall_s = time.monotonic() - start_s
    tick()
    audio_s = sum(result.audio_s for result in results)
    return Throughput(
        batch=batch,
        audio_s=audio_s,
        wall_s=wall_s,
        real_time_factor=wall_s / (audio_s / batch),
        audio_s_per_s=audio_s / wall_s,
    )


async def measure_real_time(url: str, n_streams: int, tick: Tick) -> RealTime:
    """`n_streams` clients listen to a story."""
    results = await _all_speak(url, n_streams, STORY)
    tick()
    return RealTime(
        n_streams=n_streams,
        audio_s=sum(result.audio_s for result in results),
        n_gaps=sum(result.n_gaps for result in results),
        gap_s=sum(result.gap_s for result in results),
        n_streams_with_gaps=sum(result.n_gaps > 0 for result in results),
        worst_ttfa_ms=max((result.ttfa_s or 0.0) * 1000 for result in results),
    )


async def _all_speak(url: str, n_clients: int, text: str) -> list[SpeechResult]:
    async def one() -> SpeechResult:
        async with SpeechClient(url, is_decoding=False) as client:
            return await (await client.speak(text)).wait()

    return await asyncio.gather(*(one() for _ in range(n_clients)))


@asynccontextmanager
async def _listeners(url: str, n: int) -> AsyncIterator[None]:
    """Keep `n` streams running, each heard in real time; ready when all have begun to sound."""
    has_begun = [asyncio.Event() for _ in range(n)]
    tasks = [asyncio.create_task(_listen(url, begun)) for begun in has_begun]
    try:
        for begun, task in zip(has_begun, tasks, strict=True):
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if task.done():
                task.result()
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _listen(url: str, begun: asyncio.Event) -> None:
    async with SpeechClient(url, is_decoding=False) as client:
        while True:
            speech = await client.speak(STORY)
            start_s = None
            media_s = 0.0
            async for frame in speech.frames():
                now_s = time.monotonic()
                start_s = now_s if start_s is None else start_s
                begun.set()
                media_s = frame.media_time_ms / 1000.0
            # The next story follows when this one has been heard, as with a person.
            heard_s = time.monotonic() - (start_s or 0.0)
            await asyncio.sleep(max(0.0, media_s - heard_s))

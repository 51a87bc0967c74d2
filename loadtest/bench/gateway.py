"""What the gateway alone can move: a model that costs nothing, bare frames, many sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from loadtest.bench.texts import STORY
from realtime.client.speech import SpeechClient, SpeechResult

N_APPENDS = 900  # under the burst that one socket may send


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Opus packets through `n_sockets` at once: encoded, framed, sent, received."""

    n_sockets: int
    n_packets: int
    wall_s: float
    packets_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Small `input_text.append` events through `n_sockets` at once: parsed and taken."""

    n_sockets: int
    n_events: int
    wall_s: float
    events_per_s: float


async def measure_packets(url: str, n_sockets: int) -> Packets:
    """Every socket hears a story as fast as it comes."""
    start_s = time.monotonic()
    results = await asyncio.gather(*(_speak_once(url, STORY) for _ in range(n_sockets)))
    wall_s = time.monotonic() - start_s
    n_packets = sum(result.n_packets for result in results)
    return Packets(
        n_sockets=n_sockets,
        n_packets=n_packets,
        wall_s=wall_s,
        packets_per_s=n_packets / wall_s,
    )


async def measure_events(url: str, n_sockets: int) -> Events:
    """Every socket sends one letter in `N_APPENDS` pieces, blanks for the most part."""
    clients = [SpeechClient(url, is_decoding=False) for _ in range(n_sockets)]
    await asyncio.gather(*(client.connect() for client in clients))
    start_s = time.monotonic()
    await asyncio.gather(*(_send_pieces(client) for client in clients))
    wall_s = time.monotonic() - start_s
    await asyncio.gather(*(client.close() for client in clients))
    n_events = n_sockets * N_APPENDS
    return Events(
        n_sockets=n_sockets, n_events=n_events, wall_s=wall_s, events_per_s=n_events / wall_s
    )


async def _speak_once(url: str, text: str) -> SpeechResult:
    async with SpeechClient(url, is_decoding=False) as client:
        return await (await client.speak(text)).wait()


async def _send_pieces(client: SpeechClient) -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "a"
        for _ in range(N_APPENDS - 1):
            yield " "

    await (await client.speak(pieces())).wait()

"""The parts of the benchmark: which servers they need, and how they are measured and shown."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from loadtest.bench import gateway, speech
from loadtest.bench.encoding import measure_encoding
from loadtest.server_process import running_server
from realtime.frames import AudioCodec

OTHERS: Final = (0, 1, 2, 4, 8)
BATCHES: Final = (1, 2, 4, 8, 16)
POLICIES: Final = ("throughput", "latency")
LISTENERS: Final = (4, 8, 10, 12)
ENCODINGS: Final[tuple[tuple[AudioCodec, int, int], ...]] = (
    ("opus", 22_050, 24_000),
    ("opus", 24_000, 24_000),
    ("pcm16", 22_050, 24_000),
    ("pcm16", 24_000, 24_000),
)
N_TAKES: Final = 5
N_SOCKETS: Final = 16
TONE: Final = ("--no-talk", "--model", "toy-tone", "--policy", "throughput", "--max-streams", "64")
ENGINE_LIMIT_S: Final = 120.0
GENERATION_LIMIT_S: Final = 600.0
GUIDANCE_LIMIT_S: Final = 300.0
DTYPES: Final = ("float32", "bfloat16")

Row = dict[str, Any]
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One table of figures.

    Args:
        name: for `--only` and the JSON.
        title: of the table.
        n_steps: of the progress bar.
        measure: gives the rows as they are done; takes the model and a call for each step.
        columns: heading and form of each figure that the table shows, by key.
        limit_s: how long it may take.
    """

    name: str
    title: str
    n_steps: int
    measure: Callable[[str, Tick], AsyncIterator[Row]]
    columns: dict[str, tuple[str, str]]
    limit_s: float = 150.0


async def _ttfa(model: str, tick: Tick) -> AsyncIterator[Row]:
    with running_server("--no-talk", "--model", model) as url:
        for n_others in OTHERS:
            yield asdict(await speech.measure_ttfa(url, n_others, N_TAKES, tick))


async def _real_time(model: str, tick: Tick) -> AsyncIterator[Row]:
    for n_listeners in LISTENERS:
        with running_server("--no-talk", "--model", model) as url:
            yield asdict(await speech.measure_real_time(url, n_listeners, tick))


async def _encoding(model: str, tick: Tick) -> AsyncIterator[Row]:
    for codec, model_rate_hz, rate_hz in ENCODINGS:
        yield asdict(await asyncio.to_thread(measure_encoding, codec, model_rate_hz, rate_hz))
        tick()


async def _throughput(model: str, tick: Tick) -> AsyncIterator[Row]:
    for policy in POLICIES:
        with running_server("--no-talk", "--model", model, "--policy", policy) as url:
            for batch in BATCHES:
                taken = await speech.measure_throughput(url, batch, tick)
                yield {"policy": policy, **asdict(taken)}


async def _packets(model: str, tick: Tick) -> AsyncIterator[Row]:
    with running_server(*TONE) as url:
        yield asdict(await gateway.measure_packets(url, N_SOCKETS))
        tick()


async def _events(model: str, tick: Tick) -> AsyncIterator[Row]:
    with running_server(*TONE) as url:
        yield asdict(await gateway.measure_events(url, N_SOCKETS))
        tick()


async def _engine(model: str, tick: Tick) -> AsyncIterator[Row]:
    answer = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [sys.executable, "-m", "loadtest.bench.engine_step"],
        capture_output=True,
        text=True,
        check=True,
        timeout=ENGINE_LIMIT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    tick()
    for row in json.loads(answer.stdout):
        yield row


async def _guidance(model: str, tick: Tick) -> AsyncIterator[Row]:
    answer = await asyncio.to_thread(_printed, "guidance", "full", GUIDANCE_LIMIT_S)
    tick()
    for row in json.loads(answer):
        yield row


async def _generation(model: str, tick: Tick) -> AsyncIterator[Row]:
    for dtype in DTYPES:
        for row in (await _measured(dtype))["generation"]:
            yield row
        tick()


async def _step(model: str, tick: Tick) -> AsyncIterator[Row]:
    for dtype in DTYPES:
        yield (await _measured(dtype))["step"]
        tick()


@cache
def _printed(name: str, argument: str, limit_s: float) -> str:
    """What a bench in a process of its own prints; two tables may come of one run."""
    answer = subprocess.run(
        [sys.executable, "-m", f"loadtest.bench.{name}", argument],
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return answer.stdout


async def _measured(dtype: str) -> dict[str, Any]:
    answer = await asyncio.to_thread(_printed, "generation", dtype, GENERATION_LIMIT_S)
    measured: dict[str, Any] = json.loads(answer)
    return measured


PARTS: Final = (
    Part(
        name="ttfa",
        title="Time to first audio at the client",
        n_steps=len(OTHERS) * N_TAKES,
        measure=_ttfa,
        columns={
            "n_others": ("others", "d"),
            "n_playing": ("of them taken", "d"),
            "n_refused": ("refused", "d"),
            "median_ms": ("median ms", ".0f"),
            "best_ms": ("best ms", ".0f"),
            "worst_ms": ("worst ms", ".0f"),
        },
    ),
    Part(
        name="real_time",
        title="Listeners at once, all starting together",
        n_steps=len(LISTENERS),
        measure=_real_time,
        limit_s=400.0,
        columns={
            "n_streams": ("streams", "d"),
            "n_refused": ("refused", "d"),
            "audio_s": ("audio s", ".1f"),
            "n_gaps": ("gaps", "d"),
            "gap_s": ("silence s", ".2f"),
            "worst_ttfa_ms": ("worst first sound ms", ".0f"),
        },
    ),
    Part(
        name="throughput",
        title="As fast as it goes",
        n_steps=len(POLICIES) * len(BATCHES),
        measure=_throughput,
        columns={
            "policy": ("policy", "s"),
            "batch": ("batch", "d"),
            "real_time_factor": ("real-time factor", ".3f"),
            "audio_s_per_s": ("audio s per s", ".1f"),
        },
    ),
    Part(
        name="encoding",
        title="Audio of one stream: resampled and coded",
        n_steps=len(ENCODINGS),
        measure=_encoding,
        columns={
            "codec": ("codec", "s"),
            "model_rate_hz": ("from Hz", "d"),
            "rate_hz": ("to Hz", "d"),
            "cpu_ms_per_s": ("CPU ms per s of audio", ".2f"),
        },
    ),
    Part(
        name="gateway_packets",
        title="Opus packets through the gateway (toy-tone)",
        n_steps=1,
        measure=_packets,
        columns={
            "n_sockets": ("sockets", "d"),
            "n_packets": ("packets", "d"),
            "packets_per_s": ("packets per s", ".0f"),
        },
    ),
    Part(
        name="gateway_events",
        title="Text events through the gateway (toy-tone)",
        n_steps=1,
        measure=_events,
        columns={
            "n_sockets": ("sockets", "d"),
            "n_events": ("events", "d"),
            "events_per_s": ("events per s", ".0f"),
        },
    ),
    Part(
        name="engine_step",
        title="One step of the engine (toy-interleaved)",
        n_steps=1,
        measure=_engine,
        columns={
            "n_streams": ("streams", "d"),
            "step_ms": ("step ms", ".2f"),
            "model_ms": ("model ms", ".2f"),
            "overhead_ms": ("engine's own ms", ".2f"),
        },
    ),
    Part(
        name="guidance",
        title="Guided decoding (95M parameters, eight columns, random weights)",
        n_steps=1,
        measure=_guidance,
        limit_s=GUIDANCE_LIMIT_S,
        columns={
            "what": ("measured in", "s"),
            "way": ("way", "s"),
            "frames_per_s": ("frames per s of each", ".2f"),
            "ratio": ("ratio", ".2f"),
            "over": ("over", "s"),
        },
    ),
    Part(
        name="generation",
        title="The engine against transformers generate (150M Llama and SNAC, random weights)",
        n_steps=len(DTYPES),
        measure=_generation,
        limit_s=2 * GENERATION_LIMIT_S,
        columns={
            "dtype": ("precision", "s"),
            "n_streams": ("requests", "d"),
            "ours_audio_s_per_s": ("ours audio s per s", ".2f"),
            "theirs_audio_s_per_s": ("transformers", ".2f"),
            "ratio": ("ratio", ".2f"),
        },
    ),
    Part(
        name="generation_step",
        title="A decode step against the matrix products in it (the same model)",
        n_steps=len(DTYPES),
        measure=_step,
        limit_s=2 * GENERATION_LIMIT_S,
        columns={
            "dtype": ("precision", "s"),
            "batch": ("batch", "d"),
            "step_ms": ("step ms", ".1f"),
            "products_ms": ("products ms", ".1f"),
            "packed_products_ms": ("packed ms", ".1f"),
            "ratio": ("ratio", ".2f"),
        },
    ),
)

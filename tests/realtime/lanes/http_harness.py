"""A plain HTTP client of the toy gateway, and what comes out of its files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import httpx
import numpy as np

from tests.realtime.harness import Gateway

SPEECH = "/v1/audio/speech"
RATE_HZ = 24_000


@asynccontextmanager
async def http_client(here: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    base_url = f"http://127.0.0.1:{here.port}"
    # Certificates take longer to load than all the rest of a test.
    async with httpx.AsyncClient(
        base_url=base_url, timeout=30, trust_env=False, verify=False
    ) as client:
        yield client


async def post_speech(here: Gateway, **fields: Any) -> httpx.Response:
    """One request, read to its end."""
    async with http_client(here) as client:
        return await client.post(SPEECH, json=fields)


async def refused(here: Gateway, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a request that must not be obeyed."""
    answer = await post_speech(here, **fields)
    assert answer.headers["content-type"] == "application/json", answer.content[:80]
    error = answer.json()["error"]
    assert set(error) == {"type", "code", "message", "param"}
    kind = "server_error" if answer.status_code >= 500 else "invalid_request_error"
    assert error["type"] == kind
    return answer.status_code, error


def decoded(content: bytes, audio_format: str) -> np.ndarray:
    """Mono float32 at 24 kHz, by FFmpeg's own decoders."""
    if audio_format == "pcm":
        return np.frombuffer(content, "<i2").astype(np.float32) / 32767
    to_mono = av.AudioResampler(format="flt", layout="mono", rate=RATE_HZ)
    blocks = []
    with av.open(io.BytesIO(content)) as container:
        for frame in container.decode(audio=0):
            blocks += [one.to_ndarray()[0] for one in to_mono.resample(frame)]
    blocks += [one.to_ndarray()[0] for one in to_mono.resample(None)]
    return np.concatenate(blocks)


def likeness(one: np.ndarray, other: np.ndarray, most_shift: int = 2400) -> float:
    """The best correlation of two recordings, one of which may start a little later."""
    n_samples = min(len(one), len(other)) - most_shift
    return max(
        float(np.corrcoef(one[shift : shift + n_samples], other[:n_samples])[0, 1])
        for shift in range(0, most_shift, 3)
    )


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events."""
    lines = body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # The server may have been first.
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()

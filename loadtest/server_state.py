"""What a server says of itself over HTTP: its models, and its state at times (`/metrics`).

Asked for in a thread: the event loop never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from loadtest.measure.flatness import Sample
from loadtest.target import Target
from realtime.client.connect import speech_url
from realtime.client.spoken import ConnectError

TIMEOUT_S: Final = 5.0
NUMBERS: Final = {
    "process_resident_memory_bytes": "rss_bytes",
    "process_open_fds": "n_descriptors",
    "process_cpu_seconds_total": "cpu_s",
    "parley_tasks": "n_tasks",
    "parley_threads": "n_threads",
    "parley_sessions": "n_sessions",
    "parley_streams": "n_streams",
    "parley_engine_n_active": "n_active",
    "parley_engine_n_queued": "n_queued",
    "parley_engine_n_slots_used": "n_slots_used",
    "parley_engine_n_pages_used": "n_pages_used",
    "parley_underrun_seconds_total": "underrun_s",
}
"""Names in `/metrics`, and ours; numbers of several engines are added up."""


@dataclass(slots=True)
class ServerLog:
    """States of a server, each with `at_s`, from the start of the run."""

    samples: list[Sample] = field(default_factory=list)

    @asynccontextmanager
    async def keep(
        self, target: Target, interval_s: float, now_s: Callable[[], float]
    ) -> AsyncIterator[None]:
        """Take a sample every `interval_s` meanwhile. A server that does not answer gives none."""
        task = asyncio.create_task(self._watch(target, interval_s, now_s), name="server log")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, target: Target, interval_s: float, now_s: Callable[[], float]) -> None:
        while True:
            with contextlib.suppress(ConnectError):
                sample = await asyncio.to_thread(read_state, target)
                self.samples.append({"at_s": now_s(), **sample})
            await asyncio.sleep(interval_s)


def http_url(url: str, path: str) -> str:
    """The HTTP URL of `path` on the server at `url`. Raises: `ConnectError`."""
    parts = urlsplit(speech_url(url))
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def read_models(target: Target) -> list[str]:
    """Names of the models that the server runs. Blocks. Raises: `ConnectError`."""
    listed = json.loads(_get(target, "/v1/models"))
    return [str(one["id"]) for one in listed["data"]]


def read_state(target: Target) -> Sample:
    """The server's numbers now. Blocks. Raises: `ConnectError`."""
    return parse_state(_get(target, "/metrics").decode())


def parse_state(text: str) -> Sample:
    """The numbers of `NUMBERS` that are in a text of `/metrics`."""
    state: dict[str, float] = {}
    for line in text.splitlines():
        name = NUMBERS.get(line.partition(" ")[0].partition("{")[0])
        if name is not None:
            state[name] = state.get(name, 0.0) + float(line.rpartition(" ")[2])
    return state


def _get(target: Target, path: str) -> bytes:
    url = http_url(target.url, path)
    key = target.api_key
    request = urllib.request.Request(
        url, headers={} if key is None else {"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        raise ConnectError(f"{url} answers HTTP {error.code}", error.code) from error
    except (OSError, urllib.error.URLError) as error:
        raise ConnectError(f"no server answers at {url}; start one with: parley serve") from error

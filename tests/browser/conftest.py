"""A browser, a scripted server, and recordings for the microphone. Run by `make test-browser`."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from tests.browser.chromium import Page, find_chromium, running_chromium
from tests.browser.scripted_server import Script, running_scripted_server

RATE_HZ = 48_000
ARTIFACTS = Path(__file__).parents[2] / "test-artifacts"
INSTALL = "apt-get install chromium espeak-ng"

Recorder = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser or a voice for the user there is nothing to test with."""
    missing = [] if find_chromium() else ["chromium"]
    missing += [] if shutil.which("espeak-ng") else ["espeak-ng"]
    if missing:
        skip = pytest.mark.skip(reason=f"{' and '.join(missing)} not found: {INSTALL}")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def microphone_file(tmp_path_factory) -> Path:
    """What the browser's microphone plays each time it is opened."""
    path = tmp_path_factory.mktemp("microphone") / "microphone.wav"
    write_wav(path, np.zeros(RATE_HZ))
    return path


@pytest.fixture(scope="session")
def browser(microphone_file) -> Iterator[Page]:
    """One browser for all tests; each opens its page anew."""
    with running_chromium(
        f"--use-file-for-fake-audio-capture={microphone_file}%noloop",
        "--host-resolver-rules=MAP parley.test 127.0.0.1",
    ) as page:
        yield page


@pytest.fixture
def page(browser) -> Iterator[Page]:
    """The browser's tab, as large as a laptop's."""
    browser.console.clear()
    browser.requests.clear()
    browser.size(1000, 860)
    browser.theme("light")
    yield browser
    browser.command("Page.navigate", url="about:blank")


@pytest.fixture(scope="session")
def record(microphone_file) -> Recorder:
    """Puts a spoken text before the microphone, by a voice that is not the server's."""

    def put(text: str, *, before_s: float = 0.5, voice: str = "en-us+m3") -> None:
        parts = [np.zeros(round(before_s * RATE_HZ)), spoken(text, voice), np.zeros(RATE_HZ)]
        write_wav(microphone_file, np.concatenate(parts))

    return put


@pytest.fixture
def scripted() -> Iterator[tuple[str, Script]]:
    """A server that does as it is told."""
    with running_scripted_server() as server:
        yield server


def spoken(text: str, voice: str) -> np.ndarray:
    """`text` said by eSpeak: float `(n,)` at 48 kHz."""
    command = ["espeak-ng", "-v", voice, "-s", "145", "--stdout", text]
    said = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    rate_hz = int.from_bytes(said[24:28], "little")
    pcm = np.frombuffer(said[44:], "<i2").astype(np.float64) / 32768
    return 0.8 * soxr.resample(pcm, rate_hz, RATE_HZ)


def write_wav(path: Path, pcm: np.ndarray) -> None:
    """Replace a file in one step, for a browser that may be reading it."""
    part = path.with_suffix(".part")
    with wave.open(str(part), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((pcm * 32767).astype("<i2").tobytes())
    part.replace(path)


@contextmanager
def running_in_thread(server: AbstractAsyncContextManager[Any]) -> Iterator[str]:
    """A server of the gateway's tests, beside the browser's blocking calls; its address."""
    started: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_started = threading.Event()

    async def serve() -> None:
        stop = asyncio.Event()
        async with server as here:
            started.append((here.port, asyncio.get_running_loop(), stop))
            is_started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_started.wait(30)
    port, loop, stop = started[0]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)

"""A real `parley serve` in a process of its own, for benchmarks and end-to-end tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
_URL = re.compile(rb"http://\S+:\d+")


class ServerProcessError(Exception):
    """The server ended or stayed silent; the message holds what it wrote."""


@contextmanager
def running_server(
    *args: str, env: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> Iterator[str]:
    """Start `parley serve` on a free loopback port, give its `http://` address, stop it.

    Args:
        args: further arguments of `parley serve`.
        env: variables added to this process's.
        timeout_s: longest wait for readiness.

    Raises:
        ServerProcessError: it did not become ready.
    """
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", *args]
    with running_command(command, env=env, timeout_s=timeout_s) as url:
        yield url


@contextmanager
def running_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Iterator[str]:
    """Start a server that prints its address when it is ready, give that, stop it.

    Args:
        command: of the process.
        env: variables added to this process's.
        timeout_s: longest wait for readiness.

    Raises:
        ServerProcessError: it did not become ready.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **(env or {})},
        )
        try:
            yield _wait_for_url(process, timeout_s, log)
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to drain; end it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait_for_url(process: subprocess.Popen[bytes], timeout_s: float, log: IO[bytes]) -> str:
    assert process.stdout is not None, "opened with a pipe"
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            match = _URL.search(line)
            if match:
                return match[0].decode()
    finally:
        watchdog.cancel()
    process.wait()
    log.seek(0)
    written = log.read().decode(errors="replace").strip()
    raise ServerProcessError(f"the server ended with {process.returncode}: {written}")

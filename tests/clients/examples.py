"""The examples of docs/clients/, run as their readers run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.clients.keys import KEY

FOLDER = Path(__file__).parents[2] / "docs/clients"
TIMEOUT_S = 120


def run_example(name: str, url: str, *arguments: str | Path, python: str = sys.executable) -> str:
    """What an example printed. It must succeed, without a word of complaint."""
    run = subprocess.run(
        [python, FOLDER / name, *arguments],
        env={**os.environ, "PARLEY_URL": url, "PARLEY_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout

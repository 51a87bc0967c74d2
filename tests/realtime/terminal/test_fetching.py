"""What is shown of a download: licences and sizes first, a bar where somebody watches."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from models.hub import Wanted
from realtime.terminal import fetching
from realtime.terminal.fetching import FetchDisplay

LM = Wanted(
    repository="org/voice", licence="apache-2.0", n_bytes=6_600_000_000, n_missing_bytes=5_000_000
)
CODEC = Wanted(repository="org/codec", licence="", n_bytes=79_000, n_missing_bytes=0)


@pytest.fixture
def shown(monkeypatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(fetching, "err", Console(file=file, highlight=False))
    return file


def test_licence_and_size_are_lines_and_nothing_else_is(shown):
    with FetchDisplay("org/voice") as display:
        display.found([LM, CODEC])
        display.fetched(5_000_000)
    assert shown.getvalue().splitlines() == [
        "Looking for org/voice on the hub.",
        "org/voice: under apache-2.0; fetching 5.0 MB of 6.6 GB",
        "org/codec: under a licence that its card does not state; 79.0 kB, all in the cache",
    ]


def test_a_terminal_has_a_bar_that_follows_the_bytes(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(fetching, "err", Console(file=file, force_terminal=True, width=100))
    with FetchDisplay("org/voice") as display:
        display.found([LM])
        display.fetched(2_500_000)
        display._progress.refresh()
        assert "2.5/5.0 MB" in file.getvalue()
        display.fetched(-500_000)
        display._progress.refresh()
        assert "2.0/5.0 MB" in file.getvalue()


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (33_400_000, "33.4 MB")],
)
def test_sizes(n_bytes, words):
    assert fetching._size(n_bytes) == words

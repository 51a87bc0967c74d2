"""The tab that reads a text aloud, on a real gateway whose engine speaks tones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from realtime.config import WEB_DEMO
from tests.browser.conftest import running_in_thread
from tests.fakes import RATE_HZ, tone
from tests.realtime.harness import FAST_CONFIG, gateway

CONFIG = replace(FAST_CONFIG, web_demo=WEB_DEMO)
CONNECTED = "document.getElementById('link-text').textContent === 'Connected'"
PAGE_RATE_HZ = 48_000
LOUD = 0.1
TEXT = "The quick brown fox jumps over the lazy dog, and then it does so once more."


@pytest.fixture
def reading(page) -> Iterator[None]:
    """The tab, connected, its loudspeaker tapped."""
    with running_in_thread(gateway(CONFIG)) as url:
        page.open(url)
        page.until(CONNECTED)
        page.run("globalThis.heard = []; parley.speak.player.tap((block) => heard.push(...block))")
        yield


def write(page, text: str) -> None:
    page.run("document.getElementById('text').select()")
    page.type(text)


def until_idle(page) -> None:
    page.until("parley.speak.state === 'idle'")


def loud_s(page) -> float:
    """From the first to the last loud sample that went to the loudspeaker."""
    loud = np.flatnonzero(np.abs(page.run("heard")) > LOUD)
    return float(loud[-1] - loud[0]) / PAGE_RATE_HZ if len(loud) else 0.0


def test_a_text_is_heard_to_its_end(page, reading):
    write(page, TEXT)
    page.click("go")
    page.until("parley.speak.state === 'playing'")
    until_idle(page)
    assert page.text("status") == "Done."
    spoken_s = len(tone(TEXT)) / RATE_HZ
    n_gaps = int(page.text("gaps"))
    assert n_gaps or loud_s(page) == pytest.approx(spoken_s, abs=0.05)
    assert float(page.text("seconds")) == pytest.approx(spoken_s, abs=0.06)
    assert int(page.text("ttfa")) >= 0
    assert page.console == []


def test_escape_silences_it(page, reading):
    write(page, TEXT * 12)
    page.click("go")
    page.until(f"heard.some((sample) => Math.abs(sample) > {LOUD})")
    page.key("Escape", "Escape")
    until_idle(page)
    assert page.text("status") == "Stopped."
    assert loud_s(page) < len(tone(TEXT * 12)) / RATE_HZ - 1


def test_a_text_without_words_has_no_first_sound(page, reading):
    write(page, "\N{GRINNING FACE}")
    page.click("go")
    page.until("document.getElementById('status').textContent === 'There was nothing to say.'")
    assert page.text("ttfa") == "\N{EN DASH}"

"""The page of a server that wants a key: asks for it, and then is as any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from realtime.access.config import AccessConfig
from realtime.access.keys import KeyRing
from realtime.config import WEB_DEMO
from tests.browser.conftest import ARTIFACTS, running_in_thread
from tests.realtime.harness import FAST_CONFIG
from tests.realtime.talk_harness import ScriptedAgent, talk

KEY = "a-key-of-this-server"
FORM_IS_SHOWN = "!document.getElementById('key-form').hidden"
CONNECTED = "document.getElementById('link-text').textContent === 'Connected'"
LOCKED = replace(
    FAST_CONFIG,
    web_demo=WEB_DEMO,
    access=AccessConfig(keys=KeyRing([KEY]), wrong_key_burst=3),
    first_message_timeout_s=600.0,
)


@pytest.fixture
def locked() -> Iterator[str]:
    """The address of a server with a key."""
    with running_in_thread(talk(ScriptedAgent(), config=LOCKED)) as url:
        yield url


def enter(page, text: str) -> None:
    page.run("document.getElementById('key').focus()")
    page.type(text)
    page.key("Enter", "Enter", text="\r")


def test_the_page_asks_for_the_key_and_goes_on_with_it(page, locked):
    page.open(locked)
    page.until(FORM_IS_SHOWN)
    assert page.run("document.getElementById('talk').hidden")
    page.screenshot(ARTIFACTS / "key.png")
    enter(page, "two words")
    page.until("document.getElementById('key-fault').textContent.includes('no spaces')")
    page.run("document.getElementById('key').value = ''")
    enter(page, "not-the-key-of-this-server")
    page.until("document.getElementById('key-fault').textContent.includes('not accept')")
    enter(page, KEY)
    page.until(CONNECTED)
    assert page.run("document.getElementById('key-form').hidden")
    page.run("document.getElementById('say-text').focus()")
    page.type("Hello.")
    page.key("Enter", "Enter", text="\r")
    page.until("parley.talk.transcript.turns.some((turn) => turn.text.includes('Good day'))")
    page.click("tab-speak")
    page.until(CONNECTED)
    page.open(locked)
    page.until(CONNECTED)
    assert not any(KEY in one for one in page.requests), "a key in a URL"


def test_too_many_wrong_keys_are_said_in_the_servers_words(page, locked):
    page.open(locked)
    for n in range(4):
        page.until(f"{FORM_IS_SHOWN} && !document.getElementById('key').disabled")
        enter(page, f"not-the-key-of-this-server-{n}")
    page.until("document.getElementById('fault-text').textContent.includes('too many wrong')")

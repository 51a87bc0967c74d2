"""The page against a server that does as it is told: talking, typing, interrupting, mishaps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.browser.conftest import ARTIFACTS
from tests.browser.scripted_server import MS_PER_CHARACTER

TONE = 0.2
"""Louder than this is the scripted answer (a tone of 0.3)."""
RATE_HZ = 48_000
PHASE = "document.getElementById('phase').dataset.phase"
ANSWER = "parley.talk.talk.answer"
TURNS = "parley.talk.transcript.turns"


@pytest.fixture
def opened(page, scripted):
    """The page, connected, its loudspeaker tapped; and the server's script."""
    url, script = scripted
    page.allow(url)
    open_page(page, url)
    return page, script


def open_page(page, url: str) -> None:
    page.open(url)
    page.until("document.getElementById('link-text').textContent === 'Connected'")
    page.run("globalThis.heard = []; parley.talk.talk.player.tap((block) => heard.push(...block))")


def heard(page) -> np.ndarray:
    """Every sample that went to the loudspeaker since the page was opened."""
    return np.array(page.run("heard.map((sample) => Math.round(sample * 1e4))")) / 1e4


def say(page, text: str) -> None:
    """Type a message and send it; until it stands in the transcript."""
    n_turns = page.run(f"{TURNS}.length")
    page.run("document.getElementById('say-text').focus()")
    page.type(text)
    page.key("Enter", "Enter", text="\r")
    page.until(f"{TURNS}.length > {n_turns}")


def until_spoken(page) -> None:
    """Until the newest turn is an answer that has been heard."""
    page.until(f"{TURNS}.at(-1)?.kind === 'answer' && {TURNS}.at(-1).isDone")


def answer_ms(script) -> int:
    return len(script.answer) * MS_PER_CHARACTER


def tone_ms(pcm: np.ndarray) -> float:
    """From the first to the last loud sample."""
    loud = np.flatnonzero(np.abs(pcm) > TONE)
    return float(loud[-1] - loud[0]) / RATE_HZ * 1000 if len(loud) else 0.0


def test_what_is_typed_is_answered_and_heard_to_the_end(opened):
    page, script = opened
    say(page, "What is the capital of France?")
    page.until(f"{PHASE} === 'speaking'")
    until_spoken(page)
    assert script.answer in page.text("turns")
    assert page.run("document.querySelector('.turn.answer .ahead').textContent") == ""
    assert "ms" in page.run("document.querySelector('.turn.answer .note').textContent")
    assert int(page.text("talk-ttfa")) > 0
    assert page.text("talk-underruns") == "0"
    # Within a packet: the pre-skip and the ends of the tone.
    assert tone_ms(heard(page)) == pytest.approx(answer_ms(script), abs=20)
    last = script.sent("output_audio.playout")[-1]
    assert last["heard_ms"] == pytest.approx(answer_ms(script), abs=60)
    assert page.console == []


def test_the_spoken_part_is_marked_while_it_is_spoken(opened):
    page, script = opened
    script.answer = "One two three four five six seven eight nine ten eleven twelve thirteen."
    say(page, "Count.")
    page.until(f"{ANSWER}?.turn?.nHeard > 20")
    marked = page.run(f"[{ANSWER}.turn.nHeard, {ANSWER}.player.heardMs()]")
    assert 20 < marked[0] < len(script.answer)
    # Behind by a report (20 ms) and a mark (100 ms), ahead by the rest of a word.
    assert marked[0] == pytest.approx(marked[1] / MS_PER_CHARACTER, abs=10)
    split = page.run(
        "['.heard', '.ahead'].map((one) =>"
        "  document.querySelector('.turn.answer ' + one).textContent)"
    )
    assert "".join(split).strip() == script.answer
    assert all(split)


def test_a_spoken_question_goes_up_as_opus_and_is_answered(opened, record):
    page, script = opened
    record("What is the capital of France?")
    page.click("mic")
    page.until(f"{PHASE} === 'hearing'")
    page.until(f"{PHASE} === 'speaking'")
    assert script.codecs == {"opus"}
    until_spoken(page)
    assert page.text("mic-text") == "Mute"
    assert script.transcript in page.text("turns")
    page.click("mic")
    n_frames = page.run("parley.talk.talk.conversation.nSent")
    assert n_frames > 50
    assert page.run(f"{PHASE}") == "idle"
    assert not page.run("parley.talk.talk.microphone.isOpen")


def test_speaking_up_silences_the_answer_at_once(opened, record):
    page, script = opened
    script.answer = "A very long answer that goes on and on. " * 6
    say(page, "Tell me everything.")
    page.until(f"{PHASE} === 'speaking'")
    record("Stop, stop it please.", before_s=0.3)
    page.click("mic")
    page.until("document.querySelector('.turn.cut')")
    cut_at = page.run("heard.length")
    n_sent = len(script.events)
    page.until(f"{PHASE} === 'speaking'")  # the answer to the interruption
    silence = heard(page)[cut_at : cut_at + RATE_HZ // 4]
    # The blocks that were under way to the page when it was asked.
    assert not (np.abs(silence[RATE_HZ // 10 :]) > 0.01).any()
    playouts = [one for one in script.events[:n_sent] if one["type"] == "output_audio.playout"]
    assert 0 < playouts[-1]["heard_ms"] < answer_ms(script)
    page.click("mic")


def test_a_cut_answer_is_reported_as_far_as_it_was_heard(opened):
    page, script = opened
    script.answer = "A long answer that is made long before it is heard. " * 3
    script.pace = 50.0
    say(page, "Tell me.")
    page.until(f"{ANSWER}?.isMade && {PHASE} === 'speaking'")
    page.click("interrupt")
    page.until("document.querySelector('.turn.cut')")
    page.until(f"{PHASE} === 'idle'")
    truncated = script.sent("conversation.item.truncate")
    assert len(truncated) == 1
    assert 0 < truncated[0]["audio_end_ms"] < answer_ms(script)
    assert not script.sent("response.cancel")
    assert page.run("document.getElementById('interrupt').disabled")


def test_escape_cancels_an_answer_that_is_being_made(opened):
    page, script = opened
    script.answer = "A long answer. " * 10
    script.pace = 1.5
    say(page, "Tell me.")
    page.until(f"{PHASE} === 'speaking'")
    page.key("Escape", "Escape")
    page.until(f"{PHASE} === 'idle'")
    assert len(script.sent("response.cancel")) == 1
    page.until("document.querySelector('.turn.cut')")
    n_heard = len(heard(page))
    page.until(f"heard.length > {n_heard + RATE_HZ // 2}")
    assert not (np.abs(heard(page)[n_heard + RATE_HZ // 10 :]) > 0.01).any()


def test_typing_over_an_answer_leaves_one_answer(opened):
    page, script = opened
    script.answer = "A long answer. " * 10
    say(page, "First.")
    page.until(f"{PHASE} === 'speaking'")
    script.answer = "The second answer."
    say(page, "Second.")
    page.until(
        f"document.getElementById('turns').textContent.includes({json.dumps(script.answer)})"
    )
    until_spoken(page)
    kinds = page.run("parley.talk.transcript.turns.map((turn) => turn.kind)")
    assert kinds == ["user", "answer", "user", "answer"]
    assert page.run("document.querySelectorAll('.turn.cut').length") == 1


def test_a_late_packet_is_an_underrun_that_is_shown(opened):
    page, script = opened
    script.answer = "A long answer that breaks in the middle of what is said."
    script.pace = 1.2
    script.hold_at_ms = 1000
    say(page, "Tell me.")
    until_spoken(page)
    assert int(page.text("talk-underruns")) >= 1
    assert page.run("parley.talk.talk.player.figures.targetS") > 0.08
    assert tone_ms(heard(page)) > answer_ms(script) + 500


def test_push_to_talk_by_keyboard(opened, record):
    page, script = opened
    record("What is the capital of France?", before_s=0.1)
    page.run("document.querySelector('input[value=hold]').click(); document.activeElement.blur()")
    page.key(" ", "Space", only="keyDown")
    page.until(f"{PHASE} === 'hearing'")
    page.until("parley.talk.talk.conversation.nSent > 20")
    page.key(" ", "Space", only="keyUp")
    page.until(f"{PHASE} === 'speaking'")
    kinds = [event["type"] for event in script.events]
    assert kinds.index("input_audio_buffer.commit") < kinds.index("response.create")
    assert script.sent("session.update")[-1]["session"]["audio"]["input"]["turn_detection"] is None
    n_sent = page.run("parley.talk.talk.conversation.nSent")
    until_spoken(page)
    assert page.run("parley.talk.talk.conversation.nSent") == n_sent  # nothing while not held


def test_a_slip_of_the_finger_is_not_answered(opened, record):
    page, script = opened
    record("", before_s=1.0)
    page.run("document.querySelector('input[value=hold]').click()")
    page.run("parley.talk.talk.hold().then(() => parley.talk.talk.release())")
    page.until("!document.getElementById('fault').hidden")
    assert "too short" in page.text("fault-text")
    assert not script.sent("response.create")
    assert page.run(PHASE) == "ready"


def test_push_to_talk_by_mouse(opened, record):
    page, script = opened
    record("What is the capital of France?", before_s=0.1)
    page.run("document.querySelector('input[value=hold]').click()")
    assert page.text("mic-text") == "Hold to talk"
    page.press("mic")
    page.until("parley.talk.talk.conversation.nSent > 20")
    page.lift()
    page.until(f"{PHASE} === 'speaking'")
    assert len(script.sent("response.create")) == 1


def test_a_refused_microphone_is_said_in_plain_words(page, scripted):
    url, _ = scripted
    page.allow(url, "denied")
    open_page(page, url)
    page.click("mic")
    page.until("!document.getElementById('fault').hidden")
    assert page.text("fault-text") == "The microphone is blocked for this page."
    assert "address bar" in page.text("fault-hint")
    assert page.text("mic-text") == "Talk"
    say(page, "Typing still works.")
    until_spoken(page)
    page.screenshot(ARTIFACTS / "microphone-refused.png")


def test_a_page_without_a_secure_context_says_so_and_still_speaks(page, scripted):
    url, script = scripted
    open_page(page, url.replace("127.0.0.1", "parley.test"))
    assert not page.run("isSecureContext")
    assert "https" in page.text("fault-text")
    assert "localhost" in page.text("fault-hint")
    page.screenshot(ARTIFACTS / "insecure-context.png")
    say(page, "Typing works.")
    until_spoken(page)
    assert tone_ms(heard(page)) == pytest.approx(answer_ms(script), abs=30)


def test_a_browser_without_webcodecs_decodes_in_wasm_and_sends_pcm(page, scripted, record):
    url, script = scripted
    page.allow(url)
    record("What is the capital of France?")
    with page.before_scripts("delete globalThis.AudioDecoder; delete globalThis.AudioEncoder;"):
        open_page(page, url)
    page.click("mic")
    page.until(f"{PHASE} === 'speaking'")
    until_spoken(page)
    assert script.codecs == {"pcm16"}
    update = script.sent("session.update")[0]["session"]["audio"]
    assert update["input"]["format"] == {"type": "audio/pcm", "rate": 16_000}
    assert update["output"]["format"]["type"] == "audio/opus"
    assert tone_ms(heard(page)) == pytest.approx(answer_ms(script), abs=30)
    page.click("mic")


def test_a_browser_without_any_opus_gets_pcm(page, scripted):
    url, script = scripted
    with page.before_scripts("delete globalThis.AudioDecoder; delete globalThis.WebAssembly;"):
        open_page(page, url)
    say(page, "Hello.")
    until_spoken(page)
    output = script.sent("session.update")[0]["session"]["audio"]["output"]
    assert output["format"] == {"type": "audio/pcm", "rate": 48_000}
    assert tone_ms(heard(page)) == pytest.approx(answer_ms(script), abs=30)


def test_a_lost_connection_is_said_and_the_conversation_goes_on(opened):
    page, script = opened
    say(page, "What is the capital of France?")
    until_spoken(page)
    script.answer = "A long answer. " * 10
    say(page, "And now?")
    page.until(f"{TURNS}.length === 4 && {TURNS}.at(-1).nHeard > 0")
    script.refuses = True
    script.events.clear()
    script.break_off()
    page.until("document.getElementById('link').classList.contains('lost')")
    page.until("document.querySelector('.turn.cut')")
    page.until("parley.talk.talk.conversation.nFailed > 1")
    page.screenshot(ARTIFACTS / "reconnecting.png")
    script.refuses = False
    page.click("retry")
    page.until("document.getElementById('link-text').textContent === 'Connected'")
    say(page, "Are you back?")
    page.until(f"{ANSWER}?.firstSoundMs")
    replayed = [one["item"] for one in script.sent("conversation.item.create")]
    assert [item["role"] for item in replayed] == ["user", "assistant", "user", "assistant", "user"]
    assert replayed[1]["content"] == [
        {"type": "output_text", "text": "The capital of France is Paris."}
    ]
    assert script.n_sessions == 2


def test_a_failed_answer_is_said(opened):
    page, script = opened
    script.fail_with = "The text model does not answer."
    say(page, "Hello?")
    page.until("!document.getElementById('fault').hidden")
    assert page.text("fault-text") == script.fail_with
    assert page.run(PHASE) == "idle"


def test_a_new_conversation_forgets_the_old_one(opened):
    page, script = opened
    say(page, "Hello.")
    until_spoken(page)
    page.click("forget")
    assert page.text("turns") == ""
    page.until("!document.getElementById('invitation').hidden")
    script.events.clear()
    say(page, "Again.")
    until_spoken(page)
    assert page.run("parley.talk.transcript.turns.length") == 2


def test_the_voice_is_chosen(opened):
    page, script = opened
    page.run(
        "(() => { const voice = document.getElementById('talk-voice'); voice.value = 'bob';"
        "voice.dispatchEvent(new Event('change')); })()"
    )
    page.run("0")
    say(page, "Hello.")
    until_spoken(page)
    updates = [one["session"] for one in script.sent("session.update")]
    assert updates[-1]["audio"] == {"output": {"voice": "bob"}}


def test_a_server_without_anybody_to_talk_to_reads_aloud(page, scripted):
    url, script = scripted
    script.tasks = ["speak"]
    page.open(url)
    page.until("!document.getElementById('speak').hidden")
    assert page.run("document.getElementById('tab-talk').hidden")
    assert script.n_sessions == 0


def test_nothing_comes_from_elsewhere(opened):
    page, _ = opened
    origin = page.run("location.origin")
    assert len(page.requests) > 15
    assert all(one.startswith((origin, "data:", "blob:")) for one in page.requests)
    assert page.console == []


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(opened):
    page, _ = opened
    page.command("Accessibility.enable")
    nodes = page.command("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "textbox", "combobox", "radio", "tab", "slider"}
    seen = [node for node in nodes if node.get("role", {}).get("value") in controls]
    assert len(seen) >= 8
    assert all(node["name"]["value"] for node in seen)
    page.run("document.body.focus()")
    reached = []
    for _ in range(14):
        page.key("Tab", "Tab")
        reached.append(page.run("document.activeElement.id || document.activeElement.value"))
    for wanted in ("tab-talk", "mic", "say-text", "send", "open", "talk-voice"):
        assert wanted in reached
    page.run("document.getElementById('tab-talk').focus()")
    page.key("ArrowRight", "ArrowRight")
    assert page.run("document.activeElement.id") == "tab-speak"
    assert page.run("document.getElementById('talk').hidden")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_the_window(opened, width):
    page, _ = opened
    page.size(width, 844, is_phone=True)
    say(page, "A message with a_very_long_word_" + "that_does_not_end_" * 8)
    for tab in ("tab-talk", "tab-speak"):
        page.click(tab)
        assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("shape", "width"), [("desktop", 1000), ("phone", 390)])
def test_pictures_for_a_look(opened, record, theme, shape, width):
    """Looked at by people; fails only where the page does not get so far."""
    page, script = opened
    page.theme(theme)
    page.size(width, 860, is_phone=shape == "phone")
    page.screenshot(ARTIFACTS / f"talk-empty-{shape}-{theme}.png")
    say(page, "What is the capital of France?")
    until_spoken(page)
    script.answer = "Rome has been the capital of Italy since eighteen seventy one, after Florence."
    script.transcript = "And what is the capital of Italy?"
    record("And what is the capital of Italy?")
    page.click("mic")
    page.until(f"parley.talk.transcript.turns.length === 4 && {ANSWER}?.turn?.nHeard > 30")
    page.run("scrollTo(0, 0)")
    page.screenshot(ARTIFACTS / f"talk-{shape}-{theme}.png")
    page.click("mic")
    page.click("tab-speak")
    page.screenshot(ARTIFACTS / f"speak-{shape}-{theme}.png")

"""Every text that is hard, through the socket, with the outcome that this lane promises."""

import pytest

from realtime.config import TextLimits
from tests.cases import text_cases
from tests.fakes import tone
from tests.realtime.harness import gateway, run

CASES = text_cases()
EMPTY = ("empty", "spaces", "punctuation only", "emoji only")
OTHER_SCRIPTS = ("other script", "right to left")
SPLIT = ("break split over deltas", "multi-byte split over deltas", "one letter at a time")
REFUSED = {"nul and lone surrogate": "invalid_text", "100k characters": "text_too_long"}
WITHOUT_MARKUP = {
    "emoji inside": "All set see you soon",
    "markdown": "Two things: code and this. first. second",
    "url": "Read example.org before lunch.",
    "hostile characters": "a, b, c \"quoted\" 'single' back brace tag",
    "break": "Wait now.",
}
SPOKEN = [case for case in CASES if case not in (*EMPTY, *OTHER_SCRIPTS, *SPLIT, *REFUSED)]


async def say(here, text):
    """A response to `text` (pieces or one string) as PCM16."""
    async with here.client() as client:
        await client.send("response.create", response={"output": {"codec": "pcm16"}})
        return await client.say(*([text] if isinstance(text, str) else text))


def test_text_that_holds_nothing_to_speak_completes_with_no_samples():
    async def scenario():
        async with gateway() as here:
            for case in EMPTY:
                spoken = await say(here, CASES[case]["input"])
                assert (spoken.status, spoken.n_samples, spoken.frames) == ("completed", 0, []), (
                    case
                )
            assert here.engine.streams == []

    run(scenario)


def test_no_text_at_all_completes_with_no_samples():
    async def scenario():
        async with gateway() as here, here.client() as client:
            spoken = await client.say()
            assert (spoken.status, spoken.n_samples) == ("completed", 0)

    run(scenario)


@pytest.mark.parametrize("case", SPOKEN)
def test_text_is_spoken_whole_and_in_order(case):
    """The words themselves are the model's matter: here every unit must be heard, once."""

    async def scenario():
        async with gateway() as here:
            spoken = await say(here, CASES[case]["input"])
            assert spoken.status == "completed"
            assert spoken.n_samples > 0
            units = [stream.text for stream in here.engine.streams]
            assert max(map(len, units)) <= TextLimits().max_unit
            heard = "".join("".join(units).split())
            assert heard == "".join(WITHOUT_MARKUP.get(case, CASES[case]["input"]).split())
            if case != "break":
                assert spoken.n_samples == sum(len(tone(unit)) for unit in units)

    run(scenario)


@pytest.mark.parametrize("case", SPLIT)
def test_text_in_pieces_is_as_unsplit(case):
    async def scenario():
        async with gateway() as here:
            pieces = CASES[case]["input"]
            split = await say(here, pieces)
            whole = await say(here, "".join(pieces))
            assert split.status == whole.status == "completed"
            assert [frame.payload for frame in split.frames] == [
                frame.payload for frame in whole.frames
            ]

    run(scenario)


def test_a_break_is_at_least_its_silence():
    async def scenario():
        async with gateway() as here:
            spoken = await say(here, CASES["break"]["input"])
            silence = spoken.pcm()[len(tone("Wait")) :][:12_000]
            assert len(silence) == 12_000
            assert not silence.any()

    run(scenario)


@pytest.mark.parametrize(("case", "code"), REFUSED.items())
def test_text_that_is_refused_is_an_error_and_the_session_goes_on(case, code):
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("input_text.append", text=CASES[case]["input"], event_id="t")
            error = await client.error()
            assert (error["code"], error["param"], error["event_id"]) == (code, "text", "t")
            if code == "text_too_long":
                assert "20000 characters" in error["message"]
            assert (await client.say("Fine now.")).status == "completed"

    run(scenario)


def test_text_too_long_in_many_pieces_keeps_what_fitted():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("input_text.append", text="no " * 6_600)
            await client.send("input_text.append", text="no " * 100)
            await client.send("input_text.end")
            await client.send("response.cancel")
            spoken = await client.spoken()
            assert [error["code"] for error in spoken.errors] == ["text_too_long"]
            assert spoken.done["usage"]["n_input_characters"] == 19_800

    run(scenario)


def test_a_nul_alone_is_refused_too():
    async def scenario():
        async with gateway() as here, here.client() as client:
            await client.send("input_text.append", text="a\0b")
            assert (await client.error())["code"] == "invalid_text"

    run(scenario)


@pytest.mark.parametrize("case", OTHER_SCRIPTS)
def test_what_a_model_cannot_speak_is_named(case):
    async def scenario():
        async with gateway() as here:
            spoken = await say(here, CASES[case]["input"])
            assert spoken.status == "failed"
            error = spoken.done["status_details"]["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_script")

    run(scenario)

"""Spoken input in a file, over HTTP and the speech socket: one answer, with any text or none."""

from __future__ import annotations

import base64
from functools import cache

import numpy as np
import pytest

from tests.engine.harness import load_toy
from tests.models.audio.test_reference import file_of, voice
from tests.realtime.harness import run
from tests.realtime.lanes.http_harness import post_speech, refused
from tests.realtime.stepped import stepped_house

TEXTS = ("", " \n", "Answer.", "It was late. We went home! Did you? " * 3, "<b>- *Well*</b>")
SENTENCES = "First this. Then that. And at last the third one."


@cache
def said(loudness: float = 1.0, seconds: float = 1.0) -> str:
    return base64.b64encode(file_of("flac", loudness * voice(seconds))).decode()


def options(**more: object) -> dict[str, object]:
    return {"input_audio": said(), "frames": 20, "reply_letters": 6, "seed": 3, **more}


def house():
    return stepped_house(model=load_toy("toy-audio-in"))


@pytest.mark.parametrize("text", TEXTS)
def test_over_http_there_is_one_answer_with_any_text_or_none(text):
    async def scenario():
        async with house() as here:
            answer = await post_speech(here, input=text, response_format="pcm", options=options())
            assert answer.status_code == 200, answer.content
            # 20 frames of 20 ms.
            assert abs(len(answer.content) // 2 - 0.4 * 24_000) <= 1

    run(scenario)


@pytest.mark.parametrize("pieces", [(), ("Answer ", "me."), (SENTENCES, SENTENCES)])
def test_over_the_socket_too_and_a_flush_makes_no_other(pieces):
    async def scenario():
        async with house() as here, here.client() as client:
            session = {"options": options(), "output": {"codec": "pcm16"}}
            await client.send("session.update", session=session)
            await client.event("session.updated")
            for piece in pieces:
                await client.send("input_text.append", text=piece)
                await client.send("input_text.flush")
            await client.send("input_text.end")
            spoken = await client.spoken()
            assert (spoken.status, spoken.done["usage"]["n_frames"]) == ("completed", 20)
            assert spoken.done["timing"]["ttfa_ms"] > 0
            assert np.abs(spoken.pcm()).max() > 0.01

    run(scenario)


def test_a_model_that_only_converses_answers_a_text_once():
    """Sentence by sentence, it would know nothing of one when it answers the next."""

    async def scenario():
        async with stepped_house(model=load_toy("toy-mixed")) as here:
            given = {"frames": 20, "reply_letters": 6, "seed": 3}
            for text in (TEXTS[3], SENTENCES):
                answer = await post_speech(here, input=text, response_format="pcm", options=given)
                assert answer.status_code == 200, answer.content
                assert abs(len(answer.content) // 2 - 0.4 * 24_000) <= 1

    run(scenario)


def test_what_was_said_and_what_was_written_decide_the_answer():
    async def scenario():
        async with house() as here:
            takes = [
                (await post_speech(here, input=text, response_format="pcm", options=given)).content
                for text, given in (
                    ("Well?", options()),
                    ("Well?", options()),
                    ("Well?", options(input_audio=said(0.2))),
                    ("What?", options()),
                )
            ]
            assert takes[0] == takes[1]
            assert len(set(takes)) == 3

    run(scenario)


def test_what_cannot_be_heard_is_named():
    async def scenario():
        async with house() as here:
            for content, code in (
                (said(0.0), "empty_audio"),
                (said(seconds=30.5), "audio_too_long"),
                ("", "empty_file"),
                ("no base64!", "invalid_audio"),
            ):
                given = options(input_audio=content)
                status, error = await refused(here, input="Well?", options=given)
                assert (status, error["code"]) == (400, code)
                assert error["param"] == "options.input_audio"
            status, error = await refused(here, input="Well?")
            assert (status, error["code"]) == (400, "missing_audio")

    run(scenario)

"""`POST /v1/audio/transcriptions`: forms in and out, limits, clients that leave."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import pytest

from realtime.agent.base import StageFailed
from realtime.audio.containers import CONTAINERS, ContainerWriter
from realtime.lanes import speech_order, transcription_order, transcriptions
from realtime.lanes.speech_order import SpeechBody
from tests.realtime.harness import gateway, run, until
from tests.realtime.lanes.http_harness import close, events_of
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

PATH = "/v1/audio/transcriptions"
RATE_HZ = 24_000


def sound(*parts: tuple[float, float], name: str = "wav") -> bytes:
    """A file of a tone, in parts of (seconds, loudness)."""
    level = np.concatenate([np.full(round(s * RATE_HZ), level) for s, level in parts])
    pcm = (level * np.sin(2 * np.pi * 440 * np.arange(len(level)) / RATE_HZ)).astype(np.float32)
    writer = ContainerWriter(CONTAINERS[name], RATE_HZ, RATE_HZ)
    return writer.push(pcm) + writer.finish()


SPOKEN = sound((1, 0), (3, LOUD), (3, 0), (2, LOUD), (1, 0))
"""Two pieces: 0.6 to 4.4 s, and 6.6 to 9.4 s."""


async def post(here: Any, content: bytes = SPOKEN, **fields: Any) -> httpx.Response:
    base_url = f"http://127.0.0.1:{here.port}"
    async with httpx.AsyncClient(
        base_url=base_url, timeout=30, trust_env=False, verify=False
    ) as client:
        return await client.post(PATH, files={"file": ("a.wav", content)}, data=fields)


@asynccontextmanager
async def hearing(agent: Any = None):
    async with talk(agent or ScriptedAgent(words="Good morning.")) as here:
        yield here
        await until(lambda: not here.server.gateway.count.n_sessions)


def test_words_come_as_json():
    async def scenario():
        async with hearing() as here:
            answer = await post(here, model="whisper-1")
            assert answer.status_code == 200
            assert answer.json() == {
                "text": "Good morning. Good morning.",
                "usage": {"type": "duration", "seconds": 10.0},
            }

    run(scenario)


@pytest.mark.parametrize("name", ["flac", "mp3", "opus", "aac"])
def test_every_kind_of_file_is_heard(name):
    async def scenario():
        async with hearing() as here:
            content = sound((1, 0), (3, LOUD), (1, 0), name=name)
            assert (await post(here, content)).json()["text"] == "Good morning."
            (asked,) = here.agent.transcriptions
            assert len(asked.pcm) / 16_000 == pytest.approx(3.8, abs=0.2)

    run(scenario)


def test_words_come_as_text_and_as_subtitles():
    async def scenario():
        async with hearing() as here:
            plain = await post(here, response_format="text")
            assert plain.headers["content-type"].startswith("text/plain")
            assert plain.text == "Good morning. Good morning.\n"
            assert (await post(here, response_format="srt")).text == (
                "1\n00:00:00,608 --> 00:00:04,384\nGood morning.\n\n"
                "2\n00:00:06,592 --> 00:00:09,408\nGood morning.\n"
            )
            assert (await post(here, response_format="vtt")).text == (
                "WEBVTT\n\n00:00:00.608 --> 00:00:04.384\nGood morning.\n\n"
                "00:00:06.592 --> 00:00:09.408\nGood morning.\n"
            )

    run(scenario)


def test_the_long_form_has_times():
    async def scenario():
        async with hearing() as here:
            fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
            answer = (await post(here, language="en", **fields)).json()
            assert (answer["task"], answer["language"]) == ("transcribe", "en")
            assert answer["duration"] == pytest.approx(10)
            assert [one["id"] for one in answer["segments"]] == [0, 1]
            spans = [(one["start"], one["end"]) for one in answer["segments"]]
            assert np.ravel(spans) == pytest.approx([0.6, 4.4, 6.6, 9.4], abs=0.05)
            assert {one.language for one in here.agent.transcriptions} == {"en"}

    run(scenario)


def test_words_come_as_events_while_the_rest_is_heard():
    async def scenario():
        async with hearing() as here:
            answer = await post(here, stream="true")
            assert answer.headers["content-type"].startswith("text/event-stream")
            *deltas, done = events_of(answer.content)
            assert {one["type"] for one in deltas} == {"transcript.text.delta"}
            text = "Good morning. Good morning."
            assert "".join(one["delta"] for one in deltas) == text
            usage = {"type": "duration", "seconds": 10.0}
            assert done == {"type": "transcript.text.done", "text": text, "usage": usage}

    run(scenario)


def test_silence_has_no_words_and_nobody_is_asked():
    async def scenario():
        async with hearing() as here:
            assert (await post(here, sound((5, 0)))).json()["text"] == ""
            assert here.agent.transcriptions == []

    run(scenario)


def test_what_clients_send_to_every_model_is_taken():
    async def scenario():
        async with hearing() as here:
            answer = await post(
                here,
                model="gpt-4o-mini-transcribe",
                prompt="Names: Parley.",
                temperature="0.2",
                chunking_strategy="auto",
                stream="False",
            )
            assert answer.status_code == 200
            assert (await post(here, model="scripted")).status_code == 200

    run(scenario)


# What cannot be obeyed.


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "gpt-5"}, 404, "model_not_found", "model"),
        ({"response_format": "xml"}, 400, "invalid_value", "response_format"),
        ({"response_format": "diarized_json"}, 400, "invalid_value", "response_format"),
        ({"response_format": "srt", "stream": "true"}, 400, "invalid_value", "response_format"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"temperature": "nan"}, 400, "invalid_value", "temperature"),
        ({"temperature": "2"}, 400, "invalid_value", "temperature"),
        ({"stream": "perhaps"}, 400, "invalid_value", "stream"),
        (
            {"timestamp_granularities[]": ["word", "segment"]},
            400,
            "invalid_value",
            "timestamp_granularities",
        ),
        ({"include[]": "logprobs"}, 400, "unknown_field", "include"),
        ({"prompt": "x" * 20_000}, 400, "invalid_form", None),
        ({f"field{n}": "x" for n in range(40)}, 400, "invalid_form", None),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(fields, status, code, param):
    async def scenario():
        async with hearing() as here:
            answer = await post(here, **fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
            assert here.agent.transcriptions == []

    run(scenario)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"This is no sound.", "invalid_audio"),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/hostname\n", "invalid_audio"),
        (sound((6, LOUD), name="flac")[:-100], "invalid_audio"),
        (sound((0, 0))[:20], "invalid_audio"),
    ],
)
def test_files_that_are_no_sound_are_refused(content, code):
    async def scenario():
        async with hearing() as here:
            answer = await post(here, content)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, code, "file")

    run(scenario)


async def post_raw(here: Any, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n".encode())
    writer.write(body)
    answer = await reader.read()
    await close(writer)
    top, _, content = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(content)["error"]


FORM = "Content-Type: multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("head", "body", "status", "code"),
    [
        ("Content-Type: application/json\r\nContent-Length: 2", b"{}", 415, None),
        ("Content-Length: 0", b"", 415, "unsupported_media_type"),
        ("Content-Type: multipart/form-data\r\nContent-Length: 2", b"ab", 400, "invalid_form"),
        (f"{FORM}\r\nContent-Length: 4", b"abcd", 400, "invalid_form"),
        (f"{FORM}\r\nContent-Length: 5", b"--x--", 400, "missing_field"),
        (f"{FORM}\r\nContent-Length: 30000000", b"--x\r\n", 413, "request_too_large"),
    ],
)
def test_bodies_that_are_no_form_are_refused(head, body, status, code):
    async def scenario():
        async with hearing() as here:
            found, error = await post_raw(here, head, body)
            assert found == status
            assert code in (None, error["code"])

    run(scenario)


def test_a_file_in_a_text_field_is_no_file():
    async def scenario():
        async with hearing() as here:
            body = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nhello\r\n--x--\r\n'
            status, error = await post_raw(here, f"{FORM}\r\nContent-Length: {len(body)}", body)
            assert (status, error["code"], error["param"]) == (400, "missing_field", "file")

    run(scenario)


def test_a_file_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(transcription_order, "MAX_FILE_BYTES", len(SPOKEN) - 1)

    async def scenario():
        async with hearing() as here:
            answer = await post(here)
            assert (answer.status_code, answer.json()["error"]["param"]) == (413, "file")

    run(scenario)


def test_a_recording_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(transcriptions, "MAX_RECORDING_S", 9.5)

    async def scenario():
        async with hearing() as here:
            error = (await post(here)).json()["error"]
            assert (error["code"], error["param"]) == ("audio_too_long", "file")

    run(scenario)


@pytest.mark.parametrize("agent", [None, ScriptedAgent(can_transcribe=False)])
def test_a_server_that_does_not_hear_says_how_to_get_one_that_does(agent):
    async def scenario():
        async with gateway() if agent is None else talk(agent) as here:
            answer = await post(here)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "transcription_unavailable")
            assert "pip install 'parley[voice]'" in error["message"]

    run(scenario)


# What fails, and who leaves.


class FailingAgent(ScriptedAgent):
    """Hears the first piece, then no more."""

    def transcribe(self, pcm, *, language):
        self.words = None if self.transcriptions else "First."
        one = super().transcribe(pcm, language=language)
        if self.words is None:
            one.put(StageFailed(stage="transcriber", code="model_error", message="a bug"))
        return one


def test_a_failure_has_a_status_or_is_an_event():
    async def scenario():
        async with hearing(FailingAgent()) as here:
            answer = await post(here)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_error")
        async with hearing(FailingAgent()) as here:
            first, last = events_of((await post(here, stream="true")).content)
            assert first["delta"] == "First."
            assert (last["type"], last["error"]["code"]) == ("error", "model_error")

    run(scenario)


def test_a_language_that_is_not_understood_is_the_clients_fault():
    class EnglishAgent(ScriptedAgent):
        def transcribe(self, pcm, *, language):
            one = super().transcribe(pcm, language=language)
            one.put(StageFailed(stage="transcriber", code="unsupported_language", message="en"))
            return one

    async def scenario():
        async with hearing(EnglishAgent(words=None)) as here:
            answer = await post(here, language="xx")
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "language")

    run(scenario)


def test_a_client_that_leaves_stops_the_transcription():
    async def scenario():
        async with hearing(ScriptedAgent(words=None)) as here:
            asking = asyncio.create_task(post(here))
            await until(lambda: here.agent.transcriptions)
            asking.cancel()
            await asyncio.wait([asking])
            await until(lambda: here.agent.transcriptions[0].is_cancelled)
            await until(lambda: not here.server.gateway.count.n_sessions)
            here.agent.words = "Next."
            assert (await post(here)).json()["text"] == "Next. Next."

    run(scenario)


def test_two_are_heard_at_once_the_rest_waits_and_too_many_are_refused(monkeypatch):
    monkeypatch.setattr(transcriptions, "MAX_OPEN", 3)

    async def scenario():
        async with hearing(ScriptedAgent(words=None)) as here:
            asking = [asyncio.create_task(post(here, sound((3, LOUD)))) for _ in range(3)]
            gateway_here = here.server.gateway
            await until(lambda: gateway_here.count.n_sessions == 3)
            await until(lambda: len(here.agent.transcriptions) == 2)
            answer = await post(here)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            for n in range(3):
                await until(lambda n=n: len(here.agent.transcriptions) > n)
                here.agent.transcriptions[n].say(f"Number {n}.")
            answers = await asyncio.gather(*asking)
            assert sorted(one.json()["text"] for one in answers) == [
                "Number 0.",
                "Number 1.",
                "Number 2.",
            ]

    run(scenario)


def test_a_bug_costs_one_request_and_is_told_in_words(caplog):
    class BrokenAgent(ScriptedAgent):
        def transcribe(self, pcm, *, language):
            raise RuntimeError("a bug")

    async def scenario():
        async with hearing(BrokenAgent()) as here:
            answer = await post(here)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert (await post(here, sound((2, 0)))).status_code == 200

    run(scenario)
    assert "a fault of ours" in caplog.text


def test_every_field_and_form_is_documented():
    document = (Path(__file__).parents[3] / "docs/http.md").read_text()
    fields = {*SpeechBody.model_fields, *transcription_order.FIELDS}
    forms = {*get_args(speech_order.Format), *get_args(transcription_order.Format)}
    for name in fields | forms:
        assert f"`{name}`" in document or f"`{name}[]`" in document, name

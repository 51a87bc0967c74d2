"""The client of a conversation against a server whose agent is scripted."""

from __future__ import annotations

import numpy as np
import pytest

from realtime.audio.files import AudioFileError, read_audio, write_audio
from realtime.client.speech import ConnectError
from realtime.client.talk import TalkClient, talk_url
from realtime.client.talked import NoAnswerError, end_of_sound
from realtime.terminal.talk import read_question, talk_by_file
from tests.realtime.harness import run, until
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

RATE_HZ = 16_000
QUESTION = np.full(RATE_HZ * 2 // 5, LOUD, np.float32)
"""400 ms: as short as a turn can safely be."""


def local(one) -> str:
    return f"ws://127.0.0.1:{one.port}"


def test_a_question_is_answered_by_voice():
    async def scenario() -> None:
        async with talk() as one, TalkClient(local(one), rate_hz=RATE_HZ) as client:
            exchange = await client.ask(QUESTION)
            assert exchange.question == "hello"
            assert exchange.answer.text == "Good day to you."
            answer = exchange.answer
            assert len(answer.pcm()) == answer.sample_rate_hz // 2
            # Opus keeps the loudness of a constant roughly at best: that it sounds is enough.
            assert np.abs(answer.pcm()).max() > 0.02
            assert exchange.ttfa_s is not None
            assert exchange.ttfa_s > 0.1  # the server waits for silence first
            assert answer.info.timing.endpoint_ms is not None
            assert len(one.agent.replies) == 1

    run(scenario)


def test_speech_over_an_answer_silences_it_and_late_frames_are_not_heard():
    async def scenario() -> None:
        agent = ScriptedAgent(answer=None)
        cleared = []
        async with (
            talk(agent) as one,
            TalkClient(
                local(one), rate_hz=RATE_HZ, codec="pcm16", on_cleared=cleared.append
            ) as client,
        ):
            await client.send_pcm(QUESTION)
            await client.send_pcm(np.zeros(RATE_HZ * 4 // 5, np.float32))
            await client.until(lambda: bool(client.answers), 10.0)
            await until(lambda: bool(agent.replies))
            agent.replies[0].say("A long story about a dog.", 2.0)
            await client.until(lambda: client.answers[0].first_sound_s is not None, 10.0)
            await client.send_pcm(QUESTION)
            await client.until(lambda: client.answers[0].is_done, 10.0)
            answer = client.answers[0]
            assert cleared == [answer]
            assert answer.info.status == "cancelled"
            n_heard = len(answer.pcm())
            assert n_heard < answer.sample_rate_hz * 2.0 + 1
            await client.until(lambda: len(client.turns) == 2, 10.0)
            assert len(answer.pcm()) == n_heard

    run(scenario)


def test_silence_is_no_question(monkeypatch):
    monkeypatch.setattr("realtime.client.talk.NO_TURN_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with talk() as one, TalkClient(local(one), rate_hz=RATE_HZ) as client:
            with pytest.raises(NoAnswerError, match="heard no speech"):
                await client.ask(QUESTION * 0.0)

    run(scenario)


def test_a_turn_without_words_is_no_question():
    async def scenario() -> None:
        agent = ScriptedAgent(words="")
        async with talk(agent) as one, TalkClient(local(one), rate_hz=RATE_HZ) as client:
            with pytest.raises(NoAnswerError, match="no words"):
                await client.ask(QUESTION)

    run(scenario)


def test_from_file_to_file(tmp_path):
    source, target = tmp_path / "question.wav", tmp_path / "answer.wav"
    write_audio(source, QUESTION, RATE_HZ)

    async def scenario() -> None:
        async with talk() as one:
            report = await talk_by_file(local(one), source, target)
        assert (report.question, report.answer) == ("hello", "Good day to you.")
        assert (report.file, report.status) == (str(target), "completed")
        assert report.stages_ms["text_model"] == 1.0  # as the script says
        assert report.ttfa_ms is not None

    run(scenario)
    pcm, rate_hz = read_audio(target)
    assert len(pcm) == rate_hz // 2


def test_no_server_is_said():
    async def scenario() -> None:
        with pytest.raises(ConnectError, match="parley serve"):
            await TalkClient("ws://127.0.0.1:9", rate_hz=RATE_HZ).connect()

    run(scenario)


def test_urls_take_the_lane_of_conversations():
    assert talk_url("http://a:1") == "ws://a:1/v1/realtime"
    assert talk_url("ws://a:1/other") == "ws://a:1/other"
    with pytest.raises(ConnectError):
        talk_url("ftp://a")


def test_the_end_of_speech_is_the_last_sound():
    pcm = np.concatenate([np.zeros(100), np.full(50, 0.5), np.full(300, 0.002)])
    assert end_of_sound(pcm.astype(np.float32)) == 150
    assert end_of_sound(np.zeros(10, np.float32)) == 0


def test_questions_of_a_rate_that_the_lane_lacks_are_resampled(tmp_path):
    path = tmp_path / "odd.wav"
    write_audio(path, np.full(11_025, 0.1, np.float32), 11_025)
    pcm, rate_hz = read_question(path)
    assert (rate_hz, len(pcm)) == (16_000, 16_000)
    write_audio(path, np.zeros(0, np.float32), 16_000)
    with pytest.raises(AudioFileError):
        read_question(path)

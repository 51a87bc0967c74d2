"""Transcriptions in one thread for all sessions: order, cancelling, bounds, faults."""

import asyncio
import threading

import numpy as np
import pytest

from realtime.agent.base import StageFailed, TranscriptCompleted, TranscriptDelta
from realtime.agent.errors import StageError
from realtime.agent.transcriber import LocalTranscriber, check_spoken
from tests.realtime.agent.fakes import SECOND, FakeEar, all_of
from tests.realtime.harness import run, until


def transcribed(*recordings: np.ndarray, ear: FakeEar, language: str | None = None):
    """What is told of each recording, all begun at once."""

    async def scenario():
        transcriber = LocalTranscriber(ear)
        running = [transcriber.transcribe(one, language=language) for one in recordings]
        told = [await all_of(one) for one in running]
        assert transcriber.n_open == 0
        await transcriber.close()
        return told

    return run(scenario)


def test_a_recording_becomes_text_window_by_window():
    ear = FakeEar()
    told = transcribed(np.tile(SECOND, 2), ear=ear, language="en-GB")
    assert told == [
        [
            TranscriptDelta(text="Window 1."),
            TranscriptDelta(text=" Window 2."),
            TranscriptCompleted(text="Window 1. Window 2.", seconds=2.0),
        ]
    ]
    assert [language for _, language in ear.heard] == ["en", "en"]
    assert all(name.startswith("transcriber") for name in ear.thread_names)
    assert len(ear.thread_names) == 1


def test_silence_is_an_empty_transcript_that_nothing_was_asked_for():
    ear = FakeEar()
    assert transcribed(0 * SECOND, ear=ear) == [[TranscriptCompleted(text="", seconds=1.0)]]
    assert ear.heard == []


def test_a_window_without_words_leaves_no_trace():
    ear = FakeEar(words=lambda n: "" if n == 1 else "Yes.")
    told = transcribed(np.tile(SECOND, 2), ear=ear)
    assert told == [[TranscriptDelta(text="Yes."), TranscriptCompleted(text="Yes.", seconds=2.0)]]


def test_recordings_take_turns_by_windows():
    ear = FakeEar()
    long, short = np.tile(SECOND, 3), SECOND
    told = transcribed(long, short, ear=ear)
    assert told[1][-1].text == "Window 2."
    assert told[0][-1].text == "Window 1. Window 3. Window 4."


def test_a_fault_of_the_model_ends_its_transcription_alone():
    def words(n: int) -> str:
        if n == 1:
            raise RuntimeError("out of memory")
        return "Fine."

    broken, fine = transcribed(SECOND, SECOND, ear=FakeEar(words=words))
    assert [event.code for event in broken if isinstance(event, StageFailed)] == ["model_error"]
    assert fine[-1].text == "Fine."


def test_a_language_that_the_model_does_not_know_is_refused():
    ((failed,),) = transcribed(SECOND, ear=FakeEar(), language="fr")
    assert isinstance(failed, StageFailed)
    assert (failed.stage, failed.code) == ("transcriber", "unsupported_language")
    assert "en, de" in failed.message


@pytest.mark.parametrize(
    ("asked", "known", "spoken"),
    [
        (None, ("en",), "en"),
        (None, ("en", "de"), None),
        (None, (), None),
        ("en_US", ("en", "de"), "en"),
        ("DE", ("en", "de"), "de"),
        ("fr-CA", (), "fr"),
    ],
)
def test_languages_are_known_by_their_main_part(asked, known, spoken):
    assert check_spoken(asked, known) == spoken


def test_an_odd_language_is_quoted_safely():
    with pytest.raises(StageError, match="not understood"):
        check_spoken("\ud800", ("en",))


def test_a_cancelled_transcription_in_the_queue_is_never_heard():
    async def scenario():
        ear = FakeEar()
        ear.gate.clear()
        transcriber = LocalTranscriber(ear)
        first = transcriber.transcribe(SECOND, language=None)
        waiting = transcriber.transcribe(2 * SECOND, language=None)
        await until(ear.has_begun.is_set)
        waiting.cancel()
        waiting.cancel()
        assert await waiting.next_event() is None
        assert await waiting.next_event() is None
        await until(lambda: transcriber.n_open == 1)
        ear.gate.set()
        assert (await all_of(first))[-1].text == "Window 1."
        assert transcriber.n_open == 0
        await transcriber.close()
        assert [pcm[0] for pcm, _ in ear.heard] == [1]

    run(scenario)


def test_a_cancelled_transcription_ends_with_its_window():
    async def scenario():
        ear = FakeEar()
        ear.gate.clear()
        transcriber = LocalTranscriber(ear)
        running = transcriber.transcribe(np.tile(SECOND, 5), language=None)
        await until(ear.has_begun.is_set)
        running.cancel()
        assert await running.next_event() is None
        ear.gate.set()
        after = transcriber.transcribe(SECOND, language=None)
        await all_of(after)
        assert len(ear.heard) == 2
        await transcriber.close()

    run(scenario)


def test_too_many_are_refused_at_once_and_told_when_to_come_again():
    async def scenario():
        ear = FakeEar()
        ear.gate.clear()
        transcriber = LocalTranscriber(ear, max_waiting=2)
        running = [transcriber.transcribe(SECOND, language=None) for _ in range(2)]
        await until(lambda: transcriber.n_open == 2)
        (refused,) = await all_of(transcriber.transcribe(SECOND, language=None))
        assert (refused.code, refused.retry_after_s) == ("overloaded", 1.0)
        running[1].cancel()
        await until(lambda: transcriber.n_open == 1)
        again = transcriber.transcribe(SECOND, language=None)
        ear.gate.set()
        assert (await all_of(again))[-1].text
        await all_of(running[0])
        await transcriber.close()

    run(scenario)


@pytest.mark.parametrize("n_steps", range(12))
def test_a_cancel_at_any_moment_leaves_nothing(n_steps: int):
    async def scenario():
        ear = FakeEar()
        transcriber = LocalTranscriber(ear)
        running = transcriber.transcribe(np.tile(SECOND, 3), language=None)
        for _ in range(n_steps):
            await asyncio.sleep(0)
        running.cancel()
        assert await running.next_event() is None
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert transcriber.n_open == 0
        await transcriber.close()
        names = [one.name for one in threading.enumerate()]
        assert not [name for name in names if name.startswith("transcriber")]

    run(scenario)

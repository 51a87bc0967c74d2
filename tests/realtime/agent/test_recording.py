"""Long recordings: cut at pauses, heard in order, patient with a busy transcriber."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ, StageFailed, TranscriptCompleted
from realtime.agent.errors import StageError
from realtime.agent.recording import (
    MARGIN_FRAMES,
    MOST_FRAMES,
    PieceCutter,
    SpokenPiece,
    transcribe_recording,
)
from tests.realtime.harness import run, until
from tests.realtime.talk_harness import LOUD, LoudnessDetector, ScriptedAgent

FRAME_S = FRAME_SAMPLES / HEARD_RATE_HZ


def cut(voice: list[float], step: int = 40) -> list[SpokenPiece]:
    """The pieces of a recording in which sample n of a frame is the number of the frame."""
    pcm = np.repeat(np.arange(len(voice), dtype=np.float32), FRAME_SAMPLES)
    cutter = PieceCutter()
    pieces = []
    for start in range(0, len(voice), step):
        end = min(start + step, len(voice))
        part = pcm[start * FRAME_SAMPLES : end * FRAME_SAMPLES]
        pieces += cutter.push(part, voice[start:end])
    return pieces + cutter.finish()


def frames(piece: SpokenPiece) -> tuple[int, int]:
    """First and last frame of a piece, by its samples."""
    return int(piece.pcm[0]), int(piece.pcm[-1])


def seconds(amount: float, level: float) -> list[float]:
    return [level] * round(amount / FRAME_S)


def test_where_nobody_speaks_there_is_no_piece():
    assert cut(seconds(90, 0.1)) == []
    assert cut([]) == []


def test_a_click_is_no_voice():
    assert cut([*seconds(3, 0.0), 0.9, 0.9, *seconds(3, 0.0)]) == []


def test_a_piece_is_the_voice_and_a_little_around_it():
    quiet, voice = seconds(3, 0.0), seconds(1, 0.9)
    (piece,) = cut(quiet + voice + quiet)
    first, last = len(quiet), len(quiet) + len(voice) - 1
    assert frames(piece) == (first - MARGIN_FRAMES, last + MARGIN_FRAMES)
    assert piece.start_s == pytest.approx((first - MARGIN_FRAMES) * FRAME_S)
    assert piece.end_s == pytest.approx((last + 1 + MARGIN_FRAMES) * FRAME_S)


def test_a_long_pause_ends_a_piece_and_a_short_one_only_a_long_piece():
    voice = seconds(2, 0.9)
    assert len(cut(voice + seconds(1, 0.0) + voice)) == 1
    assert len(cut(voice + seconds(2.5, 0.0) + voice)) == 2
    assert len(cut(voice * 3 + seconds(1, 0.0) + voice)) == 2


def test_speech_without_a_pause_is_cut_where_it_is_weakest():
    voice = seconds(20, 0.9) + [0.55] * 5 + seconds(20, 0.9)
    first, second = cut(voice)
    weakest = len(seconds(20, 0.9))
    assert weakest <= frames(first)[1] <= weakest + 5
    assert frames(second)[0] == frames(first)[1] + 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 30), st.sampled_from([0.0, 0.4, 0.9])), max_size=8),
    st.integers(8, 400),
)
def test_every_voiced_frame_is_in_one_piece_whatever_the_steps(parts, step):
    voice = [one for amount, level in parts for one in seconds(amount, level)]
    pieces = cut(voice, step)
    spans = [frames(piece) for piece in pieces]
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    assert all(last - first < MOST_FRAMES + MARGIN_FRAMES for first, last in spans)
    covered = {n for first, last in spans for n in range(first, last + 1)}
    assert {n for n, one in enumerate(voice) if one >= 0.5} <= covered
    assert spans == [frames(piece) for piece in cut(voice, 1000)]


# With a transcriber.


def recording(*parts: tuple[float, float]):
    """A reader of loud and silent seconds, in uneven pieces."""
    pcm = np.concatenate(
        [np.full(round(s * HEARD_RATE_HZ), level, np.float32) for s, level in parts]
    )
    pieces = np.array_split(pcm, 7)

    async def read():
        return pieces.pop(0) if pieces else None

    return read


def heard(agent, read, language=None):
    async def scenario():
        track = LoudnessDetector().open_track()
        found = transcribe_recording(read, agent=agent, track=track, language=language)
        return [piece async for piece in found]

    return run(scenario)


def test_pieces_are_heard_in_order_with_their_times():
    agent = ScriptedAgent(words="some words")
    found = heard(agent, recording((1, 0), (3, LOUD), (4, 0), (2, LOUD), (3, 0)), "de")
    assert [one.text for one in found] == ["some words"] * 2
    starts, ends = [one.start_s for one in found], [one.end_s for one in found]
    assert starts == pytest.approx([1 - 0.4, 8 - 0.4], abs=0.05)
    assert ends == pytest.approx([4 + 0.4, 10 + 0.4], abs=0.05)
    assert {one.language for one in agent.transcriptions} == {"de"}


def test_voices_are_looked_for_in_short_calls():
    """Frames of all sessions share a call: a long one would hold up whoever speaks now."""
    lengths = []

    class CountingDetector(LoudnessDetector):
        async def probabilities(self, pcm):
            lengths.append(len(pcm))
            return await super().probabilities(pcm)

    async def scenario():
        read, track = recording((20, LOUD)), CountingDetector()
        found = transcribe_recording(read, agent=ScriptedAgent(), track=track, language=None)
        return [piece async for piece in found]

    assert run(scenario)
    assert max(lengths) <= HEARD_RATE_HZ // 2 + FRAME_SAMPLES


def test_silence_is_never_transcribed():
    agent = ScriptedAgent()
    assert heard(agent, recording((30, 0.0))) == []
    assert agent.transcriptions == []


def test_a_piece_without_words_is_left_out():
    assert heard(ScriptedAgent(words=""), recording((3, LOUD))) == []


class BusyAgent(ScriptedAgent):
    """Refuses so many times, then transcribes."""

    def __init__(self, n_refusals: int, code: str = "overloaded") -> None:
        super().__init__(words=None)
        self.n_refusals = n_refusals
        self.code = code

    def transcribe(self, pcm, *, language):
        one = super().transcribe(pcm, language=language)
        if len(self.transcriptions) <= self.n_refusals:
            one.put(StageFailed(stage="transcriber", code=self.code, message="no", retry_after_s=0))
        else:
            one.put(TranscriptCompleted(text="at last", seconds=1.0))
        return one


def test_a_busy_transcriber_is_asked_again(monkeypatch):
    waits = []

    async def sleep(wait_s):
        waits.append(wait_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    found = heard(BusyAgent(3), recording((3, LOUD)))
    assert [one.text for one in found] == ["at last"]
    assert len(waits) == 3


def test_other_failures_end_it():
    with pytest.raises(StageError) as caught:
        heard(BusyAgent(1, code="transcriber_timeout"), recording((3, LOUD)))
    assert caught.value.code == "transcriber_timeout"


def test_whoever_stops_reading_stops_the_transcription():
    agent = ScriptedAgent(words=None)

    async def scenario():
        track = LoudnessDetector().open_track()
        found = transcribe_recording(recording((3, LOUD)), agent=agent, track=track, language=None)
        reading = asyncio.create_task(anext(found))
        await until(lambda: agent.transcriptions)
        reading.cancel()
        await asyncio.wait([reading])
        assert agent.transcriptions[0].is_cancelled

    run(scenario)

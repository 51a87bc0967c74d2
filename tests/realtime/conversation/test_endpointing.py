"""Starts, pauses and ends of speech, from made-up voice probabilities and a made-up clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.agent.base import FRAME_SAMPLES
from realtime.conversation.endpointing import (
    FRAME_MS,
    SAMPLES_PER_MS,
    Endpointer,
    EndpointSettings,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    TurnEnded,
)

SETTINGS = EndpointSettings()
LOUD_DB = -20.0


class Line:
    """An endpointer and its audio so far."""

    def __init__(self, settings: EndpointSettings = SETTINGS) -> None:
        self.endpointer = Endpointer(settings)
        self.now_s = 0.0

    def hear(self, *parts: tuple[float, float], level_db=LOUD_DB, agent=False) -> list:
        """Parts of (probability, ms); the events, in order."""
        events = []
        for probability, milliseconds in parts:
            for _ in range(round(milliseconds / FRAME_MS)):
                self.now_s += FRAME_MS / 1000
                events += self.endpointer.push(
                    probability, level_db, self.now_s, is_agent_speaking=agent
                )
        return events


def kinds(events: list) -> list[type]:
    return [type(event) for event in events]


def ms(samples: int) -> float:
    return samples / SAMPLES_PER_MS


def test_a_turn_from_first_word_to_silence():
    line = Line()
    events = line.hear((0.0, 960), (0.9, 640), (0.0, 1024))
    assert kinds(events) == [SpeechStarted, SpeechPaused, TurnEnded]
    started, paused, ended = events
    # Padding is whole frames, at least as much as asked for.
    assert 300 <= 960 - ms(started.start) < 300 + FRAME_MS
    assert ended.start == paused.start == started.start
    assert ms(ended.speech_end) == 1600
    # The verdict is asked for after 192 ms of silence, which is less than the tail.
    assert ms(paused.end) == 1600 + 192
    assert ms(ended.end) == 1600 + 200
    assert ended.cause == "silence"
    assert ended.pause_number == paused.pause_number
    assert not line.endpointer.is_speaking


@pytest.mark.parametrize(
    ("parts", "is_speech"),
    [
        ([(0.9, 96)], False),
        ([(0.9, 128)], True),
        ([(0.9, 64), (0.0, 32), (0.9, 64)], False),
        # A dip that does not reach silence is part of the word.
        ([(0.9, 64), (0.4, 32), (0.9, 32)], True),
        ([(0.49, 5000)], False),
        ([(0.9, 32), (0.4, 5000)], False),
    ],
)
def test_minimum_speech_and_hysteresis_at_the_start(parts, is_speech):
    assert kinds(Line().hear((0.0, 320), *parts)) == [SpeechStarted] * is_speech


def test_hysteresis_while_speaking():
    line = Line()
    line.hear((0.9, 320))
    assert line.hear((0.4, 5000)) == [], "over the lower mark the speech goes on"
    assert kinds(line.hear((0.3, 600))) == [SpeechPaused, TurnEnded]


def test_after_silence_has_begun_the_upper_mark_counts():
    line = Line()
    line.hear((0.9, 320), (0.1, 96))
    assert kinds(line.hear((0.4, 480))) == [SpeechPaused, TurnEnded]


def test_a_pause_is_part_of_the_turn():
    line = Line()
    events = line.hear((0.9, 640), (0.0, 320), (0.9, 640), (0.0, 600))
    assert kinds(events) == [SpeechStarted, SpeechPaused, SpeechResumed, SpeechPaused, TurnEnded]
    assert [event.pause_number for event in events[1:]] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("verdicts", "silence_ms", "cause"),
    [
        (["finished"], 288, "finished"),
        (["unfinished"], 2016, "silence"),
        (["undecided"], 512, "silence"),
        ([], 512, "silence"),
        # The judge, and then the words.
        (["unfinished", "undecided"], 512, "silence"),
        (["undecided", "unfinished"], 2016, "silence"),
    ],
)
def test_a_verdict_shortens_or_lengthens_the_wait(verdicts, silence_ms, cause):
    line = Line()
    assert kinds(line.hear((0.9, 640), (0.0, 192))) == [SpeechStarted, SpeechPaused]
    for verdict in verdicts:
        assert line.endpointer.on_verdict(1, verdict) == []
    n_before = 0
    while not (events := line.hear((0.0, FRAME_MS))):
        n_before += 1
    assert 192 + (n_before + 1) * FRAME_MS == silence_ms
    assert events[0].cause == cause


def test_a_late_verdict_ends_the_turn_at_once():
    line = Line()
    line.hear((0.9, 640), (0.0, 416))
    assert kinds(line.endpointer.on_verdict(1, "finished")) == [TurnEnded]


def test_a_verdict_on_another_pause_counts_for_nothing():
    line = Line()
    line.hear((0.9, 640), (0.0, 416), (0.9, 64))
    assert line.endpointer.on_verdict(1, "finished") == []
    line.hear((0.0, 320))
    assert line.endpointer.on_verdict(1, "finished") == []
    assert kinds(line.endpointer.on_verdict(2, "finished")) == [TurnEnded]
    assert line.endpointer.on_verdict(2, "finished") == []


def test_when_frames_stop_the_wall_clock_ends_the_turn():
    line = Line()
    line.hear((0.9, 640))
    assert line.endpointer.check(line.now_s + 0.79) == []
    (ended,) = line.endpointer.check(line.now_s + 0.81)
    assert (ended.cause, ended.pause_number) == ("starved", None)
    assert ms(ended.end) == 640
    assert line.endpointer.check(line.now_s + 9.0) == [], "once"


def test_silence_is_not_starved():
    line = Line()
    line.hear((0.0, 640))
    assert line.endpointer.check(line.now_s + 60) == []


def test_while_the_agent_speaks_a_voice_must_be_clearer_louder_and_longer():
    assert kinds(Line().hear((0.9, 160), agent=True)) == [SpeechStarted]
    assert Line().hear((0.9, 128), agent=True) == []
    assert Line().hear((0.79, 5000), agent=True) == []
    assert Line().hear((0.9, 5000), agent=True, level_db=-50.0) == []
    assert kinds(Line().hear((0.7, 192), level_db=-50.0)) == [SpeechStarted]


def test_a_turn_that_interrupts_goes_on_by_the_usual_marks():
    line = Line()
    line.hear((0.9, 192), agent=True)
    assert line.hear((0.5, 960), agent=True) == []


def test_a_turn_is_cut_at_its_longest():
    line = Line(replace(SETTINGS, max_turn_ms=2000))
    events = line.hear((0.9, 2600))
    assert kinds(events) == [SpeechStarted, TurnEnded, SpeechStarted]
    assert (events[1].cause, events[1].pause_number) == ("length", None)
    assert events[2].start >= events[1].end, "no sound belongs to two turns"


def test_reset_forgets_the_turn_and_what_was_before():
    line = Line()
    line.hear((0.9, 640))
    line.endpointer.reset()
    assert not line.endpointer.is_speaking
    at = line.endpointer.position
    (started,) = line.hear((0.9, 160))
    assert started.start == at


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20), st.booleans()), max_size=25),
    st.lists(st.sampled_from(["finished", "undecided", "unfinished"]), max_size=10),
)
def test_any_probabilities(parts, verdicts):
    """Starts and ends alternate, turns do not overlap, and what is kept is enough."""
    line = Line(replace(SETTINGS, max_turn_ms=8000))
    verdicts = list(verdicts)
    last_end, start = 0, None
    for probability, n_frames, agent in parts:
        for _ in range(n_frames):
            keep_from = line.endpointer.keep_from
            events = line.hear((probability, FRAME_MS), agent=agent)
            for event in events:
                match event:
                    case SpeechStarted():
                        assert start is None
                        assert event.start >= max(last_end, keep_from)
                        start = event.start
                    case SpeechPaused() if verdicts:
                        events += line.endpointer.on_verdict(event.pause_number, verdicts.pop())
                    case TurnEnded():
                        assert event.start == start
                        assert start < event.speech_end <= event.end <= line.endpointer.position
                        last_end, start = event.end, None
            assert line.endpointer.position % FRAME_SAMPLES == 0
            assert line.endpointer.is_speaking == (start is not None)
    for event in line.endpointer.check(line.now_s + 1):
        assert event.start == start
        start = None
    assert start is None

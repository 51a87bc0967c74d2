"""How a conversation's time is split, from what the server and the client counted."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.bench.converse import percentile_95
from loadtest.bench.interrupting import DECISION_MS, _cut
from loadtest.bench.talking import STAGES, Question, _take
from realtime.client.received_audio import ReceivedAudio
from realtime.client.talked import Answer, Exchange, NoAnswerError, Turn
from realtime.conversation.endpointing import SAMPLES_PER_MS, Endpointer, EndpointSettings
from realtime.conversation.events import AnswerInfo, AnswerTiming
from realtime.events import OutputAudioStarted

# 0.5 s of silence, 1.5 s of sound: it ends at 2000 ms.
PCM = np.concatenate([np.zeros(8000), np.full(24_000, 0.5), np.zeros(1600)]).astype(np.float32)
QUESTION = Question(text="Why?", pcm=PCM, rate_hz=16_000)
# The server hears the voice end 60 ms later.
TURN = Turn(item_id="t", started_s=8.9, stopped_s=10.4, start_ms=200, end_ms=2060)
TIMING = AnswerTiming(
    endpoint_ms=300.0,
    transcript_ms=50.0,
    stage_ms={"text_model": 60.0, "first_clause": 190.0, "speech_model": 280.0},
    ttfa_ms=340.0,
)


def exchange(
    first_sound_s: float | None, timing: AnswerTiming | None, first_frame_s: float | None = None
) -> Exchange:
    info = AnswerInfo(
        id="r", number=1, status="completed", conversation_id="c",
        output_modalities=["audio"], timing=timing,
    )  # fmt: skip
    answer = Answer(info=info, created_s=0.0, text="So.", first_sound_s=first_sound_s)
    if first_frame_s is not None:
        started = OutputAudioStarted(
            response_id="r", response_number=1, codec="opus", sample_rate_hz=24_000, packet_ms=20,
            pre_skip_samples=0,
        )  # fmt: skip
        answer.audio = ReceivedAudio(started, None)
        answer.audio.log.first_s = first_frame_s
    return Exchange(question="why", answer=answer, speech_end_s=10.0)


def test_the_stages_add_up_to_the_total():
    take = _take(QUESTION, exchange(10.78, TIMING, first_frame_s=10.72), TURN)
    spans = [round(take.stages_ms[name], 6) for name in STAGES]
    assert spans == [360.0, 50.0, 60.0, 130.0, 90.0, 10.0, 20.0, 60.0]
    assert sum(spans) == pytest.approx(take.ttfa_ms) == pytest.approx(780.0)


def test_a_stage_that_was_not_passed_is_left_out():
    timing = AnswerTiming(endpoint_ms=300.0, stage_ms={"speech_model": 280.0}, ttfa_ms=290.0)
    take = _take(QUESTION, exchange(10.78, timing, first_frame_s=10.72), TURN)
    assert list(take.stages_ms) == ["endpoint_wait", "speech_model", "opus", "socket", "lead_in"]
    assert sum(take.stages_ms.values()) == pytest.approx(780.0)


def test_what_the_server_does_not_tell_is_not_made_up():
    assert _take(QUESTION, exchange(10.78, None), TURN).stages_ms == {}


def test_an_answer_without_sound_is_no_take():
    with pytest.raises(NoAnswerError):
        _take(QUESTION, exchange(None, None), TURN)


def test_an_interruption_is_timed_from_its_first_sound_and_from_the_decision():
    answer = exchange(10.0, None).answer
    answer.cleared_s, answer.last_frame_s = 20.75, 20.8
    # 30 s were sent before; the server says that the turn starts 170 ms into the interruption.
    turn = Turn(item_id="t", started_s=20.75, start_ms=30_170)
    cut = _cut(QUESTION, answer, turn, begun_s=20.0, before_ms=30_000.0)
    assert cut.heard_ms == pytest.approx(250.0)
    assert cut.decided_ms == pytest.approx(100.0)
    assert cut.last_frame_ms == pytest.approx(50.0)


def test_the_decision_is_where_the_server_makes_it():
    settings = EndpointSettings()
    endpointer, events, n_frames = Endpointer(settings), [], 0
    while not events:
        # Enough silence for all of the padding, then a voice.
        probability = 1.0 if n_frames >= 20 else 0.0
        events = endpointer.push(probability, -20.0, 0.0, is_agent_speaking=True)
        n_frames += 1
    (started,) = events
    assert (endpointer.position - started.start) / SAMPLES_PER_MS == DECISION_MS


@pytest.mark.parametrize(
    ("values", "expected"), [([7.0], 7.0), ([1.0, 2.0], 1.95), (list(range(101)), 95)]
)
def test_the_95th_percentile(values, expected):
    assert percentile_95(values) == pytest.approx(expected)

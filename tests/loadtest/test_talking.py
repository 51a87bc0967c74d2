"""How a conversation's time is split, from what the server and the client counted."""

from __future__ import annotations

import pytest

from loadtest.bench.talking import STAGES, Question, _take
from realtime.client.talked import Answer, Exchange, NoAnswerError
from realtime.conversation.events import AnswerInfo, AnswerTiming

QUESTION = Question(text="Why?", pcm=None, rate_hz=16_000)


def exchange(first_sound_s: float | None, timing: AnswerTiming | None) -> Exchange:
    info = AnswerInfo(
        id="r", number=1, status="completed", conversation_id="c",
        output_modalities=["audio"], timing=timing,
    )  # fmt: skip
    answer = Answer(info=info, created_s=0.0, text="So.", first_sound_s=first_sound_s)
    return Exchange(question="why", answer=answer, speech_end_s=10.0)


def test_stages_and_rest_add_up_to_the_total():
    timing = AnswerTiming(
        endpoint_ms=300.0,
        transcript_ms=50.0,
        stage_ms={"text_model": 60.0, "first_clause": 190.0, "speech_model": 280.0},
    )
    take = _take(QUESTION, exchange(10.75, timing))
    assert [take.stages_ms[name] for name in STAGES] == [300.0, 50.0, 60.0, 130.0, 90.0]
    assert take.rest_ms == pytest.approx(750.0 - 630.0)


def test_a_stage_that_was_not_passed_is_left_out():
    timing = AnswerTiming(endpoint_ms=300.0, stage_ms={"speech_model": 280.0})
    take = _take(QUESTION, exchange(10.75, timing))
    assert take.stages_ms == {"endpoint_wait": 300.0, "speech_model": 280.0}


def test_an_answer_without_sound_is_no_take():
    with pytest.raises(NoAnswerError):
        _take(QUESTION, exchange(None, None))

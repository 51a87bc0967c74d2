"""Transcripts from an OpenAI-compatible endpoint."""

import io
import json
import wave

import numpy as np
import pytest

from realtime.agent.base import (
    FRAME_SAMPLES,
    StageFailed,
    TranscriptCompleted,
    TranscriptDelta,
)
from realtime.agent.openai_transcriber import OpenAiTranscriber, wav_bytes
from realtime.workers import Workers
from tests.realtime.agent.fake_endpoint import Scripted, events, fake_endpoint, refusal
from tests.realtime.agent.fakes import SECOND, all_of
from tests.realtime.harness import run


def loud(pcm: np.ndarray) -> list[float]:
    """A voice wherever there is a sound."""
    frames = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return [float(frame.any()) for frame in frames]


def transcribed(answer: Scripted, pcm: np.ndarray = SECOND, language: str | None = None):
    async def scenario():
        async with fake_endpoint(answer) as running:
            workers = Workers(1)
            transcriber = OpenAiTranscriber(running.endpoint, loud, workers)
            told = await all_of(transcriber.transcribe(pcm, language=language))
            workers.close()
            return told, running.app.requests

    return run(scenario)


def whole(value: object) -> Scripted:
    return Scripted([json.dumps(value).encode()], kind="application/json")


def test_a_streamed_transcript_is_passed_on_as_it_comes():
    deltas = [{"type": "transcript.text.delta", "delta": one} for one in ("Good ", "morning.")]
    end = {"type": "transcript.text.done", "text": "Good morning."}
    told, (request,) = transcribed(events(*deltas, end), language="en-GB")
    assert told == [
        TranscriptDelta(text="Good "),
        TranscriptDelta(text="morning."),
        TranscriptCompleted(text="Good morning.", seconds=1.0),
    ]
    assert request.path == "/v1/audio/transcriptions"
    for part in (b'name="model"\r\n\r\nfake-1', b'name="language"\r\n\r\nen\r', b"RIFF"):
        assert part in request.body


def test_a_server_that_does_not_stream_is_understood():
    told, _ = transcribed(whole({"text": " Good morning. "}))
    assert told[-1] == TranscriptCompleted(text="Good morning.", seconds=1.0)


def test_a_stream_of_the_end_alone_is_understood():
    told, _ = transcribed(events({"type": "transcript.text.done", "text": "Yes."}, done=False))
    assert told == [TranscriptDelta(text="Yes."), TranscriptCompleted(text="Yes.", seconds=1.0)]


def test_silence_never_leaves_this_machine():
    told, requests = transcribed(whole({"text": "Thank you."}), pcm=0 * SECOND)
    assert told == [TranscriptCompleted(text="", seconds=1.0)]
    assert requests == []


def test_text_without_words_is_no_transcript():
    told, _ = transcribed(whole({"text": ". . . ."}))
    assert told[-1].text == ""


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (whole({"words": []}), "bad_response"),
        (whole([]), "bad_response"),
        (Scripted([b"<html>"], kind="text/html"), "bad_response"),
        (events({"type": "transcript.text.delta", "delta": "Go"}), "bad_response"),
        (events({"type": "transcript.text.delta", "delta": 7}), "bad_response"),
        (refusal(401), "endpoint_refused"),
        (refusal(429, retry_after="9"), "endpoint_overloaded"),
    ],
)
def test_a_bad_answer_is_a_named_failure(answer: Scripted, code: str):
    told, _ = transcribed(answer)
    failed = told[-1]
    assert isinstance(failed, StageFailed)
    assert (failed.stage, failed.code) == ("transcriber", code)


def test_what_is_sent_is_a_wav_file_of_the_samples():
    pcm = np.linspace(-1, 1, 1000, dtype=np.float32)
    with wave.open(io.BytesIO(wav_bytes(pcm))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16_000, 1000)
        samples = np.frombuffer(file.readframes(1000), "<i2")
    # Half a step of 16 bits.
    assert np.abs(samples / 32767 - pcm).max() <= 0.5 / 32767 + 1e-7

"""The end-of-turn judge: its features against independent values, its refusals, its verdicts."""

import asyncio
import importlib.util

import numpy as np
import pytest

from realtime.agent import end_of_turn
from realtime.agent.end_of_turn import (
    EndOfTurnMissingError,
    SmartTurn,
    last_window,
    load_judge,
    log_mel,
    weights_path,
)
from tests.realtime.sounds import RATE_HZ, speech_like

has_model = all(importlib.util.find_spec(name) for name in ("pipecat", "onnxruntime"))
needs_model = pytest.mark.skipif(
    not has_model, reason="pip install --no-deps pipecat-ai==1.14.0 (see the Makefile)"
)


def test_features_have_a_column_for_each_10_ms():
    features = log_mel(last_window(speech_like(2.0)))
    assert features.shape == (80, 800)
    assert features.dtype == np.float32


@pytest.mark.parametrize(
    ("hz", "band"),
    # Band centres of the Slaney scale, worked out by hand: 80 triangles between 82 edges over
    # 0..45.245 mel, 0.5586 mel apart; 3 mel are 200 Hz below 1 kHz, 27 mel are ln 6.4 above.
    [(447, 11), (894, 23), (2100, 45), (4000, 62)],
)
def test_a_tone_is_loudest_in_its_band(hz, band):
    at_s = np.arange(8 * RATE_HZ) / RATE_HZ
    features = log_mel(np.sin(2 * np.pi * hz * at_s).astype(np.float32))
    assert abs(int(features[:, 400].argmax()) - band) <= 1


def test_features_do_not_depend_on_loudness():
    pcm = last_window(speech_like(3.0))
    # Up to the floor under the variance.
    assert np.allclose(log_mel(pcm), log_mel(0.5 * pcm), atol=1e-3)


def test_features_equal_those_the_model_was_trained_with():
    """Against the extractor of an installed library that trained models take as given."""
    extractors = pytest.importorskip("faster_whisper.feature_extractor", reason="no faster-whisper")
    pcm = last_window(speech_like(5.0))
    scaled = (pcm - pcm.mean()) / np.sqrt(pcm.var() + 1e-7)
    theirs = extractors.FeatureExtractor(feature_size=80)(scaled)[:, :800]
    # That library works in float32, and pads the end with zeros, which the last column sees.
    assert np.abs(log_mel(pcm) - theirs)[:, :-1].max() < 1e-3


def test_short_audio_ends_at_the_end_of_the_window():
    window = last_window(np.ones(1600, np.float32))
    assert len(window) == 8 * RATE_HZ
    assert not window[:-1600].any()
    assert window[-1600:].all()
    assert len(last_window(np.ones(9 * RATE_HZ, np.float32))) == 8 * RATE_HZ


def test_absent_or_other_weights_are_refused_in_words(tmp_path, monkeypatch):
    other = tmp_path / "model.onnx"
    with pytest.raises(EndOfTurnMissingError):
        SmartTurn(other)
    other.write_bytes(b"not these")
    with pytest.raises(EndOfTurnMissingError, match=r"SHA-256|onnxruntime"):
        SmartTurn(other)
    monkeypatch.setattr(end_of_turn, "WEIGHTS", "nowhere.onnx")
    assert load_judge() is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EndOfTurnMissingError, match="not installed"):
        weights_path()
    assert load_judge() is None


@needs_model
def test_a_verdict_is_a_probability_and_the_same_again():
    async def scenario():
        judge = SmartTurn(weights_path())
        pcm = np.concatenate([speech_like(1.5), np.zeros(RATE_HZ // 5, np.float32)])
        first, again = await judge.completeness(pcm), await judge.completeness(pcm)
        await judge.close()
        assert 0.0 <= first <= 1.0
        assert first == again

    asyncio.run(scenario())

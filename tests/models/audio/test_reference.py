"""Voices to speak with: files and samples come in the same form, and faults have names."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
import pytest

from models.audio import sound
from models.audio.recordings import Recording
from models.audio.reference import Reference, read_reference, reference_words
from models.errors import PlanError
from models.spec import PlanRequest
from realtime.audio.containers import CONTAINERS, ContainerWriter
from tests.models.audio.test_recordings import wave_file

RATE_HZ = 24_000


def voice(seconds: float, rate_hz: int = RATE_HZ) -> np.ndarray:
    at_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.4 * np.sin(2 * np.pi * 220 * at_s)).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), dtype=np.float32)


def file_of(name: str, pcm: np.ndarray) -> bytes:
    writer = ContainerWriter(CONTAINERS[name], RATE_HZ, RATE_HZ)
    return writer.push(pcm) + writer.finish()


def stereo(pcm: np.ndarray, rate_hz: int) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.repeat((pcm * 32767).astype("<i2"), 2).tobytes())
    return target.getvalue()


def float_file(pcm: np.ndarray) -> bytes:
    """Of samples as they are, whatever they are."""
    return wave_file(pcm.astype("<f4").tobytes(), rate_hz=RATE_HZ, kind=3, n_bits=32)


def told(content: bytes) -> dict[str, str]:
    return {"reference_audio": base64.b64encode(content).decode()}


def from_file(content: bytes, rate_hz: int = RATE_HZ) -> Reference:
    found = read_reference(PlanRequest(text=""), told(content), rate_hz)
    assert found is not None
    return found


def from_samples(pcm: np.ndarray, from_hz: int = RATE_HZ, rate_hz: int = RATE_HZ) -> Reference:
    found = read_reference(PlanRequest(text="", audio=pcm, audio_rate_hz=from_hz), {}, rate_hz)
    assert found is not None
    return found


def code_of(call, *arguments) -> str:
    with pytest.raises(PlanError) as caught:
        call(*arguments)
    assert caught.value.param == "reference_audio"
    assert caught.value.message.startswith("reference_audio ")
    return caught.value.code


def test_without_one_there_is_none():
    assert read_reference(PlanRequest(text=""), {}, RATE_HZ) is None


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus", "aac"])
def test_every_kind_of_file_is_a_voice(name):
    found = from_file(file_of(name, voice(2.0)))
    assert found.rate_hz == RATE_HZ
    assert len(found.pcm) / RATE_HZ == pytest.approx(2.0, abs=0.15)
    assert np.sqrt(np.square(found.pcm).mean()) == pytest.approx(0.4 / np.sqrt(2), rel=0.1)


def test_channels_and_rates_are_brought_to_what_the_family_takes():
    found = from_file(stereo(voice(1.5, 44_100), 44_100), 16_000)
    assert found.pcm.ndim == 1
    assert abs(len(found.pcm) - 24_000) <= 16
    spectrum = np.abs(np.fft.rfft(found.pcm[:16_000]))
    assert int(spectrum.argmax()) == 220


def test_samples_are_brought_to_the_rate_too():
    assert len(from_samples(voice(1.5), RATE_HZ, 16_000).pcm) == 24_000


def test_silence_around_the_voice_is_cut_off_but_for_a_little():
    pcm = np.concatenate([silence(2.0), voice(1.5), silence(0.3), voice(0.5), silence(3.0)])
    found = from_samples(pcm)
    assert len(found.pcm) / RATE_HZ == pytest.approx(2.3 + 0.2, abs=0.05)
    start = round((2.0 - 0.1) * RATE_HZ)
    assert np.array_equal(found.pcm, pcm[start : start + len(found.pcm)])


def test_a_voice_from_end_to_end_stays_as_it_is():
    pcm = voice(1.234)
    assert np.array_equal(from_samples(pcm).pcm, pcm)


def test_the_key_names_the_samples():
    keys = [
        from_samples(voice(1.5)).key,
        from_samples(np.concatenate([voice(1.5)])).key,
        from_samples(0.5 * voice(1.5)).key,
        from_samples(voice(1.5), rate_hz=16_000).key,
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("pcm", "code"),
    [
        (silence(0.0), "empty_audio"),
        (silence(2.0), "empty_audio"),
        (1e-4 * voice(2.0), "empty_audio"),
        (voice(0.9), "audio_too_short"),
        (np.concatenate([silence(5.0), voice(0.7), silence(5.0)]), "audio_too_short"),
        (voice(30.1), "audio_too_long"),
        (np.full(RATE_HZ, np.nan, dtype=np.float32), "invalid_audio"),
    ],
)
def test_samples_that_are_no_voice_are_named(pcm, code):
    assert code_of(from_samples, pcm) == code


@pytest.mark.parametrize("name", ["aac", "flac", "mp3", "opus", "wav"])
def test_the_longest_sound_is_taken_from_files_of_every_kind(name):
    """Coders fill their last frames: files of 30 s were refused as longer."""
    read = from_file(file_of(name, voice(30.0)))
    assert 29.9 * RATE_HZ < len(read.pcm) <= 30 * RATE_HZ


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.9999, "has 0.99 s of sound, 1 s are needed"),
        (30.0001, "has 30.01 s, at most 30 are taken"),
    ],
)
def test_what_is_refused_is_not_told_as_what_is_taken(seconds, shown):
    with pytest.raises(PlanError, match=shown):
        from_samples(voice(seconds))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"not a sound file at all, but words", "invalid_audio"),
        (file_of("wav", voice(2.0))[:30], "invalid_audio"),
        (file_of("wav", silence(2.0)), "empty_audio"),
        (file_of("flac", voice(0.5)), "audio_too_short"),
        (file_of("flac", voice(31.0)), "audio_too_long"),
        (file_of("flac", np.tile(voice(1.0), 600)), "audio_too_long"),
        (float_file(np.full(2 * RATE_HZ, np.nan)), "invalid_audio"),
        (float_file(np.where(np.arange(2 * RATE_HZ) == RATE_HZ, np.inf, 0.5)), "invalid_audio"),
    ],
)
def test_files_that_are_no_voice_are_named(content, code):
    assert code_of(from_file, content) == code


def test_what_is_no_base64_is_named():
    request = PlanRequest(text="")
    options = {"reference_audio": "C:\\voice.wav"}
    assert code_of(read_reference, request, options, RATE_HZ) == "invalid_audio"


def test_a_data_address_is_taken_as_browsers_make_it():
    content = file_of("wav", voice(1.5))
    plain = told(content)["reference_audio"]
    options = {"reference_audio": f"data:audio/wav;base64,{plain}"}
    found = read_reference(PlanRequest(text=""), options, RATE_HZ)
    assert found is not None
    assert found.key == from_file(content).key


def test_two_voices_at_once_are_refused():
    request = PlanRequest(text="", audio=voice(1.5), audio_rate_hz=RATE_HZ)
    options = told(file_of("wav", voice(1.5)))
    assert code_of(read_reference, request, options, RATE_HZ) == "invalid_reference"


def test_a_file_is_decoded_once(monkeypatch):
    """Every unit of a response is planned with it."""
    n_opened = []

    def counted(*arguments, **named) -> Recording:
        n_opened.append(1)
        return Recording(*arguments, **named)

    monkeypatch.setattr(sound, "Recording", counted)
    content = file_of("wav", voice(1.7))
    assert from_file(content) is from_file(content)
    from_file(content, 16_000)
    assert len(n_opened) == 2


def test_words_are_stripped_and_belong_to_a_recording():
    found = from_samples(voice(1.5))
    assert reference_words({"reference_text": " so I said \n"}, found) == "so I said"
    assert reference_words({"reference_text": "  "}, found) is None
    assert reference_words({}, None) is None
    with pytest.raises(PlanError) as caught:
        reference_words({"reference_text": "so I said"}, None)
    assert (caught.value.code, caught.value.param) == ("invalid_reference", "reference_text")

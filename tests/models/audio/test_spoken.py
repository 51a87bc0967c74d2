"""What the user says: files and samples come in the same form, and faults have names.

Kinds of files, rates and channels are those of reference audio: one reader (test_reference.py).
"""

from __future__ import annotations

import base64

import numpy as np
import pytest

from models.audio.spoken import MOST_S, NAME, read_spoken, spoken_option
from models.errors import PlanError
from models.spec import PlanRequest
from tests.models.audio.test_reference import RATE_HZ, file_of, float_file, silence, told, voice

HEARD_HZ = 16_000


def said(pcm: np.ndarray, *, rate_hz: int | None = RATE_HZ, most_s: float = 30.0):
    return read_spoken(
        PlanRequest(text="", audio=pcm, audio_rate_hz=rate_hz), {}, HEARD_HZ, most_s=most_s
    )


def sent(content: bytes, most_s: float = 30.0):
    options = {NAME: told(content)["reference_audio"]}
    return read_spoken(PlanRequest(text=""), options, HEARD_HZ, most_s=most_s)


def test_nothing_said_is_none():
    assert read_spoken(PlanRequest(text="Hello?"), {}, HEARD_HZ, most_s=30.0) is None


def test_a_file_and_its_samples_come_alike():
    pcm = np.concatenate([silence(1.0), voice(2.0), silence(1.0)])
    heard, read = said(pcm), sent(file_of("flac", pcm))
    assert heard is not None
    assert read is not None
    for sound in (heard, read):
        assert sound.rate_hz == HEARD_HZ
        assert len(sound.pcm) / HEARD_HZ == pytest.approx(2.2, abs=0.05)
        assert np.abs(np.fft.rfft(sound.pcm[8_000:24_000])).argmax() == 220
    assert heard.key != read.key, "two filters resampled it"
    again = said(pcm)
    assert again is not None
    assert heard.key == again.key


def test_a_word_is_enough():
    for n_samples in (1, 2, 100, 7_999):
        sound = said(np.full(n_samples, 0.5, np.float32), rate_hz=HEARD_HZ)
        assert sound is not None
        assert len(sound.pcm) == n_samples


def test_samples_without_a_rate_have_the_family_s():
    sound = said(voice(1.0, HEARD_HZ), rate_hz=None)
    assert sound is not None
    assert len(sound.pcm) == HEARD_HZ


def test_five_minutes_are_heard_where_a_family_takes_them():
    pcm = np.tile(voice(1.0, HEARD_HZ), 300)
    sound = said(pcm, rate_hz=HEARD_HZ, most_s=MOST_S)
    assert sound is not None
    assert len(sound.pcm) == 300 * HEARD_HZ
    with pytest.raises(PlanError, match=r"has 300\.1 s, at most 300 are taken"):
        said(np.append(pcm, voice(0.1, HEARD_HZ)), rate_hz=HEARD_HZ, most_s=MOST_S)


def test_a_family_states_what_it_takes():
    assert "at most 25 s" in spoken_option(25.0).description
    with pytest.raises(AssertionError):
        spoken_option(MOST_S + 1)
    file = file_of("opus", voice(26.0))
    assert sent(file, most_s=27.0) is not None
    with pytest.raises(PlanError) as caught:
        sent(file, most_s=25.0)
    assert (caught.value.code, caught.value.param) == ("audio_too_long", NAME)


@pytest.mark.parametrize(
    ("pcm", "code"),
    [
        (silence(0.0), "empty_audio"),
        (silence(2.0), "empty_audio"),
        (np.array([0.1, np.nan], np.float32), "invalid_audio"),
        (np.array([0.1, -np.inf], np.float32), "invalid_audio"),
        (voice(30.1), "audio_too_long"),
    ],
)
def test_samples_that_say_nothing_are_named(pcm, code):
    with pytest.raises(PlanError) as caught:
        said(pcm)
    assert (caught.value.code, caught.value.param) == (code, NAME)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"not a sound file at all, but words", "invalid_audio"),
        (file_of("wav", silence(2.0)), "empty_audio"),
        (file_of("wav", silence(0.0)), "empty_audio"),
        (float_file(np.full(2 * RATE_HZ, np.nan)), "invalid_audio"),
    ],
)
def test_files_that_say_nothing_are_named(content, code):
    with pytest.raises(PlanError) as caught:
        sent(content)
    assert (caught.value.code, caught.value.param) == (code, NAME)


def test_two_ways_at_once_are_refused():
    options = {NAME: base64.b64encode(file_of("wav", voice(1.0))).decode()}
    request = PlanRequest(text="", audio=voice(1.0), audio_rate_hz=RATE_HZ)
    with pytest.raises(PlanError) as caught:
        read_spoken(request, options, HEARD_HZ, most_s=30.0)
    assert (caught.value.code, caught.value.param) == ("invalid_value", NAME)

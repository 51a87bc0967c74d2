"""Audio files: exact lengths, the signal survives, faults are one line."""

from __future__ import annotations

import numpy as np
import pytest

from realtime.audio.files import AudioFileError, check_target, read_audio, write_audio

RATE_HZ = 22050


def tone(n_samples: int) -> np.ndarray:
    return (0.5 * np.sin(np.arange(n_samples) * 2 * np.pi * 440 / RATE_HZ)).astype(np.float32)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_lossless_files_hold_the_same_samples(tmp_path, suffix):
    pcm = tone(RATE_HZ + 137)
    write_audio(tmp_path / f"a{suffix}", pcm, RATE_HZ)
    read, rate_hz = read_audio(tmp_path / f"a{suffix}")
    assert (rate_hz, len(read)) == (RATE_HZ, len(pcm))
    assert np.abs(read - pcm).max() < 1 / 32768  # one step of 16 bits


@pytest.mark.parametrize("suffix", [".opus", ".ogg", ".OGG"])
def test_opus_files_keep_length_and_signal(tmp_path, suffix):
    pcm = tone(2 * RATE_HZ)
    write_audio(tmp_path / f"a{suffix}", pcm, RATE_HZ)
    read, rate_hz = read_audio(tmp_path / f"a{suffix}")
    assert rate_hz == 48000
    assert len(read) / rate_hz == pytest.approx(2.0, abs=0.001)  # the resampler rounds at the end
    middle = read[24000:72000]
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) == pytest.approx(440, abs=1)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_silence_of_no_length_is_a_file(tmp_path):
    write_audio(tmp_path / "a.wav", np.zeros(0, np.float32), RATE_HZ)
    assert len(read_audio(tmp_path / "a.wav")[0]) == 0


def test_loud_samples_are_clipped_not_wrapped(tmp_path):
    write_audio(tmp_path / "a.wav", np.array([2.0, -2.0], np.float32), RATE_HZ)
    read, _ = read_audio(tmp_path / "a.wav")
    assert read[0] > 0.99
    assert read[1] < -0.99


def test_an_unknown_suffix_names_the_known_ones(tmp_path):
    with pytest.raises(AudioFileError, match=r"\.wav, \.flac, \.opus, \.ogg"):
        check_target(tmp_path / "a.mp3")


def test_a_missing_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(AudioFileError, match="mkdir -p"):
        check_target(tmp_path / "no" / "a.wav")


def test_a_folder_is_not_overwritten(tmp_path):
    folder = tmp_path / "a.wav"
    folder.mkdir()
    with pytest.raises(AudioFileError, match="is no file"):
        write_audio(folder, np.zeros(10, np.float32), 24_000)
    assert folder.is_dir()


def test_what_is_no_audio_is_refused(tmp_path):
    path = tmp_path / "a.wav"
    path.write_text("not audio at all")
    with pytest.raises(AudioFileError, match="cannot read"):
        read_audio(path)

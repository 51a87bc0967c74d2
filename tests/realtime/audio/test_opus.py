"""The Opus library is found, or what to install is said."""

import sys

import pytest

from realtime.audio.opus import LIBRARIES, OpusDecoder, OpusEncoder, load_library
from realtime.errors import OpusMissingError


def test_the_bundled_library_is_found():
    assert load_library().__name__ == LIBRARIES[0]


def test_without_a_library_the_error_says_what_to_install(monkeypatch):
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OpusMissingError, match="pip install opuslib-next-bundled"):
        OpusEncoder(sample_rate_hz=24000, bitrate_bps=32000, complexity=5)
    with pytest.raises(OpusMissingError, match="libopus0"):
        OpusDecoder(sample_rate_hz=24000)


def test_the_system_library_is_the_second_choice(monkeypatch):
    bundled = load_library()
    monkeypatch.setitem(sys.modules, LIBRARIES[0], None)
    monkeypatch.setitem(sys.modules, LIBRARIES[1], bundled)
    assert load_library() is bundled


def test_a_higher_bitrate_makes_larger_packets():
    from tests.fakes import tone

    pcm = tone("bits")[:480]
    sizes = [
        len(OpusEncoder(sample_rate_hz=24000, bitrate_bps=rate, complexity=5).encode(pcm))
        for rate in (8000, 64000)
    ]
    assert sizes[0] < sizes[1]

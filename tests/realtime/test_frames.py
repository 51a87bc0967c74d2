"""The binary header, byte by byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.errors import ProtocolError
from realtime.frames import AudioFrame, encode_audio_frame, is_current, parse_audio_frame

FRAMES = st.builds(
    AudioFrame,
    codec=st.just("opus"),
    response_number=st.integers(0, 0xFFFF),
    media_time_ms=st.integers(0, 0xFFFFFFFF),
    payload=st.binary(min_size=1, max_size=64),
)


def test_layout_is_as_written_down():
    frame = AudioFrame(
        codec="pcm16", response_number=0x0102, media_time_ms=0x03040506, payload=b"ab"
    )
    assert encode_audio_frame(frame) == bytes([1, 2, 0x02, 0x01, 0x06, 0x05, 0x04, 0x03]) + b"ab"


@given(frame=FRAMES)
def test_what_goes_in_comes_out(frame):
    assert parse_audio_frame(encode_audio_frame(frame)) == frame


@settings(deadline=None)
@given(message=st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_a_named_error(message):
    try:
        frame = parse_audio_frame(message)
    except ProtocolError as error:
        fault = error
    else:
        assert encode_audio_frame(frame) == message
        return
    assert fault.code == "invalid_frame"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x01\x01\x00", "3 bytes"),
        (b"\xc8\x01\x00\x00\x00\x00\x00\x00x", "kind 200"),
        (b"\x01\x09\x00\x00\x00\x00\x00\x00x", "codec 9"),
        (b"\x01\x01\x00\x00\x00\x00\x00\x00", "without payload"),
        (b"\x01\x02\x00\x00\x00\x00\x00\x00xyz", "odd"),
    ],
)
def test_the_error_says_what_is_wrong(message, says):
    with pytest.raises(ProtocolError, match=says):
        parse_audio_frame(message)


def test_the_number_wraps_at_16_bits():
    frame = AudioFrame(
        codec="opus", response_number=0x1_0001, media_time_ms=2**32 + 20, payload=b"x"
    )
    parsed = parse_audio_frame(encode_audio_frame(frame))
    assert (parsed.response_number, parsed.media_time_ms) == (1, 20)
    assert is_current(parsed.response_number, 0x1_0001)
    assert not is_current(parsed.response_number, 0x1_0002)

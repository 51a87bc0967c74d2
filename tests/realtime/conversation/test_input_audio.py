"""Pieces of audio to one line of PCM at 16 kHz, and the line by positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.audio.opus import OpusEncoder
from realtime.conversation.input_audio import AudioIntake, HeardAudio, Piece, decode_whole


def pcm16(payload: bytes, rate_hz: int = 16000) -> Piece:
    return Piece(codec="pcm16", payload=payload, rate_hz=rate_hz)


@given(st.lists(st.integers(1, 9), max_size=30), st.binary(min_size=270, max_size=270))
def test_borders_between_pieces_leave_no_mark(sizes, payload):
    intake = AudioIntake()
    pieces, at = [], 0
    for size in sizes:
        pieces.append(pcm16(payload[at : at + size]))
        at += size
    pcm, faults = intake.decode(pieces)
    assert not faults
    whole = np.frombuffer(payload[: at // 2 * 2], "<i2") / 32768
    assert np.allclose(pcm, whole)


def test_another_rate_flushes_the_first():
    intake = AudioIntake()
    tone = np.sin(np.arange(4800) * 0.05)
    first = (tone * 20000).astype("<i2").tobytes()
    pcm, _ = intake.decode([pcm16(first, 48000), pcm16(first, 8000)])
    assert len(np.concatenate([pcm, intake.finish()])) == 1600 + 9600


def test_opus_and_pcm_may_alternate():
    encoder = OpusEncoder(sample_rate_hz=48000, bitrate_bps=32_000, complexity=3)
    packet = encoder.encode(np.zeros(960, np.float32))
    opus = Piece(codec="opus", payload=packet, rate_hz=0)
    pcm, faults = AudioIntake().decode([opus, pcm16(bytes(640)), opus])
    assert not faults
    assert len(pcm) == 960


def test_a_bad_packet_costs_itself_only():
    bad = Piece(codec="opus", payload=b"\x03", rate_hz=0)
    pcm, (fault,) = AudioIntake().decode([pcm16(bytes(20)), bad, pcm16(bytes(40))])
    assert fault.code == "invalid_audio"
    assert len(pcm) == 30


def test_clear_forgets_half_a_sample():
    intake = AudioIntake()
    intake.decode([pcm16(b"\x01\x02\x03")])
    intake.clear()
    pcm, _ = intake.decode([pcm16(b"\x05\x06")])
    assert np.allclose(pcm, 0x0605 / 32768)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 44100])
def test_whole_audio_has_the_exact_length(rate_hz):
    assert len(decode_whole(pcm16(bytes(2 * rate_hz), rate_hz))) == 16000
    assert len(decode_whole(pcm16(b"\x01", rate_hz))) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=20), st.integers(0, 99))
def test_the_line_gives_what_it_still_has(steps, start):
    line = HeardAudio(start)
    whole = np.zeros(start, np.float32)
    kept_from = start
    for n_new, forget_to in steps:
        new = np.arange(len(whole), len(whole) + n_new, dtype=np.float32)
        line.push(new)
        whole = np.concatenate([whole, new])
        line.forget_before(forget_to)
        kept_from = max(kept_from, min(forget_to, len(whole)))
        assert (line.start, line.end) == (kept_from, len(whole))
        for low, high in [(0, 999), (kept_from, len(whole)), (kept_from + 3, len(whole) - 3)]:
            expected = whole[max(low, kept_from) : max(low, kept_from, high)]
            assert np.array_equal(line.cut(low, high), expected)

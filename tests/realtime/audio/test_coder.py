"""Every sample goes out once: counted exactly, decodable by another library, and equal."""

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.audio.coder import AudioCoder, pcm16_bytes
from realtime.audio.opus import OpusDecoder
from realtime.audio.resample import Resampler
from realtime.events import OutputInfo
from tests.fakes import tone

FAST = settings(deadline=None, max_examples=25)
ENOUGH_DB = 20.0
"""A tone at 32 kbit/s comes back at 28 dB or more; a lost or doubled packet leaves under 10 dB."""


def opus(rate_hz=24000):
    return OutputInfo(codec="opus", sample_rate_hz=rate_hz, bitrate_bps=32000, complexity=5)


def pcm16(rate_hz=24000):
    return OutputInfo(codec="pcm16", sample_rate_hz=rate_hz)


def coded(pcm, output, *, model_rate_hz=24000, borders=()):
    coder = AudioCoder(model_rate_hz, output)
    packets = [packet for piece in np.split(pcm, list(borders)) for packet in coder.push(piece)]
    return coder, packets + coder.finish()


def decoded(coder, packets, rate_hz):
    decoder = OpusDecoder(sample_rate_hz=rate_hz)
    pcm = np.concatenate([decoder.decode(packet.payload) for packet in packets])
    return pcm[coder.pre_skip_samples :][: coder.n_samples]


def assert_same_audio(expected, got):
    """Equal but for the coding, and not late or early by a single sample."""
    assert len(expected) == len(got)
    errors = [np.sum((expected - np.roll(got, lag)) ** 2) for lag in (-2, -1, 0, 1, 2)]
    assert int(np.argmin(errors)) == 2
    assert 10 * np.log10(np.sum(expected**2) / errors[2]) > ENOUGH_DB


@pytest.mark.parametrize("n_samples", [1, 323, 324, 325, 479, 480, 481, 959, 960, 961, 1440])
def test_opus_covers_every_sample_at_every_length(n_samples):
    """The last samples were lost by servers that padded only to the packet, not by the pre-skip."""
    coder, packets = coded(np.ones(n_samples, np.float32) * 0.1, opus())
    n_decoded = 480 * len(packets)
    assert coder.n_samples == n_samples
    assert n_decoded - coder.pre_skip_samples >= n_samples
    assert n_decoded - coder.pre_skip_samples - n_samples < 480


@FAST
@given(n_samples=st.integers(0, 3000), borders=st.lists(st.integers(0, 3000), max_size=6))
def test_pcm_is_the_same_samples_however_they_came(n_samples, borders):
    pcm = tone("x" * 13)[:n_samples]
    borders = sorted(min(border, n_samples) for border in borders)
    coder, packets = coded(pcm, pcm16(), borders=borders)
    assert b"".join(packet.payload for packet in packets) == pcm16_bytes(pcm)
    assert coder.n_samples == n_samples == sum(packet.n_samples for packet in packets)
    assert all(packet.n_samples == 480 for packet in packets[:-1])


@FAST
@given(n_samples=st.integers(1, 3000), borders=st.lists(st.integers(0, 3000), max_size=6))
def test_opus_packets_do_not_depend_on_the_chunks(n_samples, borders):
    pcm = tone("x" * 13)[:n_samples]
    borders = sorted(min(border, n_samples) for border in borders)
    assert coded(pcm, opus(), borders=borders)[1] == coded(pcm, opus())[1]


def test_nothing_in_nothing_out():
    for output in (opus(), pcm16(), pcm16(16000)):
        coder, packets = coded(np.zeros(0, np.float32), output)
        assert (coder.n_samples, packets) == (0, [])


@pytest.mark.parametrize("rate_hz", [24000, 48000])
def test_opus_audio_equals_what_went_in(rate_hz):
    pcm = tone("eighteen characters", rate_hz=rate_hz, per_character=rate_hz // 20)
    coder, packets = coded(pcm, opus(rate_hz), model_rate_hz=rate_hz)
    assert_same_audio(pcm, decoded(coder, packets, rate_hz))


def test_another_library_decodes_the_packets():
    """PyAV links FFmpeg's own decoder, at the 48 kHz clock that every Opus decoder has."""
    pcm = tone("eighteen characters", per_character=1200)
    coder, packets = coded(pcm, opus())
    codec = av.CodecContext.create("opus", "r")
    codec.sample_rate = 48000
    codec.layout = "mono"
    frames = [f for packet in packets for f in codec.decode(av.Packet(packet.payload))]
    frames += codec.decode(None)
    got = np.concatenate([frame.to_ndarray().ravel() for frame in frames])
    # The announced numbers are at 24 kHz; this decoder's are twice that.
    got = got[2 * coder.pre_skip_samples :][: 2 * coder.n_samples]
    up = Resampler(24000, 48000)
    expected = np.concatenate([up.push(pcm), up.finish()])
    assert_same_audio(expected, got.astype(np.float32))


@pytest.mark.parametrize(("in_hz", "out_hz"), [(22050, 24000), (44100, 48000), (24000, 8000)])
@pytest.mark.parametrize("n_samples", [1, 100, 22049, 22050])
def test_resampled_length_is_exact(in_hz, out_hz, n_samples):
    coder, packets = coded(np.zeros(n_samples, np.float32), pcm16(out_hz), model_rate_hz=in_hz)
    n_wanted = round(n_samples * out_hz / in_hz)
    assert coder.n_samples == n_wanted == sum(packet.n_samples for packet in packets)


def test_resampling_in_chunks_is_resampling_at_once():
    pcm = tone("eighteen characters", rate_hz=22050, per_character=1200)
    whole = coded(pcm, pcm16(16000), model_rate_hz=22050)[1]
    assert coded(pcm, pcm16(16000), model_rate_hz=22050, borders=range(0, 9000, 333))[1] == whole


def test_a_resampled_tone_keeps_its_pitch():
    at_s = np.arange(22050) / 22050
    pcm = (0.5 * np.sin(2 * np.pi * 440 * at_s)).astype(np.float32)
    resampler = Resampler(22050, 16000)
    got = np.concatenate([resampler.push(pcm), resampler.finish()])
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    # The ends ring, because the tone starts and stops there.
    assert np.abs(got - expected)[500:-500].max() < 1e-3


def test_loud_samples_are_clipped_and_do_not_wrap():
    loud = np.array([2.0, -2.0, 1.0, -1.0], np.float32)
    assert np.frombuffer(pcm16_bytes(loud), "<i2").tolist() == [32767, -32767, 32767, -32767]


def test_coders_share_no_state():
    """One encoder for all streams garbles them."""
    pcm = tone("one of two streams", per_character=1200)
    alone = coded(pcm, opus())[1]
    mine, other = AudioCoder(24000, opus()), AudioCoder(24000, opus())
    packets = []
    for piece in np.split(pcm, 10):
        packets += mine.push(piece)
        other.push(np.flip(piece).copy())
    assert packets + mine.finish() == alone


@pytest.mark.parametrize("output", [opus(), pcm16()])
def test_how_many_samples_some_packets_hold(output):
    """A cancelled response announces what the packets that went out can give, no more."""
    coder, packets = coded(np.ones(1000, np.float32) * 0.1, output)
    skip = coder.pre_skip_samples
    assert coder.n_decodable(0) == 0
    assert coder.n_decodable(1) == 480 - skip
    assert coder.n_decodable(2) == 960 - skip
    assert coder.n_decodable(len(packets)) == 1000

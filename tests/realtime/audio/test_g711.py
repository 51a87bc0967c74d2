"""G.711 against another implementation (FFmpeg's, by PyAV), over every sample and every code."""

import av
import numpy as np
import pytest

from realtime.audio.g711 import G711

EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
EVERY_CODE = bytes(range(256))
LAWS = [("pcmu", "pcm_mulaw"), ("pcma", "pcm_alaw")]


def context(codec, mode):
    made = av.CodecContext.create(codec, mode)
    made.sample_rate, made.layout = 8000, "mono"
    if mode == "w":
        made.format = "s16"
    return made


def decoded_by_av(codec, payload):
    frames = context(codec, "r").decode(av.Packet(payload))
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def encoded_by_av(codec, samples):
    frame = av.AudioFrame.from_ndarray(samples[np.newaxis], format="s16", layout="mono")
    frame.sample_rate = 8000
    encoder = context(codec, "w")
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


@pytest.mark.parametrize(("law", "codec"), LAWS)
def test_every_code_stands_for_the_same_sample_as_elsewhere(law, codec):
    assert np.array_equal(G711[law].decode(EVERY_CODE), decoded_by_av(codec, EVERY_CODE))


@pytest.mark.parametrize(("law", "codec"), LAWS)
def test_every_sample_gets_the_nearest_code(law, codec):
    levels = G711[law].decode(EVERY_CODE).astype(int)
    ours = np.frombuffer(G711[law].encode(EVERY_SAMPLE), np.uint8)
    theirs = np.frombuffer(encoded_by_av(codec, EVERY_SAMPLE), np.uint8)
    samples = EVERY_SAMPLE.astype(int)
    nearest = np.array([np.abs(levels - one).min() for one in samples])
    assert np.array_equal(np.abs(levels[ours] - samples), nearest)
    # The other one rounds to 14 and 13 bits first: it differs within four of a border.
    differs = ours != theirs
    gap = np.abs(levels[ours] - samples) - np.abs(levels[theirs] - samples)
    assert np.abs(gap[differs]).max() <= 8
    assert differs.mean() < 0.01


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_a_code_survives_being_decoded_and_encoded(law):
    again = np.frombuffer(G711[law].encode(G711[law].decode(EVERY_CODE)), np.uint8)
    wanted = np.arange(256)
    if law == "pcmu":
        # Negative zero.
        wanted[0x7F] = 0xFF
    assert np.array_equal(again, wanted)

"""Exact samples and gaps of received audio."""

from __future__ import annotations

import numpy as np
import pytest

from realtime.audio.g711 import G711
from realtime.client.received_audio import PlayoutLog, ReceivedAudio
from realtime.errors import ProtocolError
from realtime.events import OutputAudioDone, OutputAudioStarted
from realtime.frames import AudioFrame

PACKET = 480


class CountingDecoder:
    """Gives the sample numbers 0, 1, 2, ... so that a cut in the wrong place is seen."""

    def __init__(self, sample_rate_hz: int) -> None:
        self.n = 0

    def decode(self, packet: bytes) -> np.ndarray:
        start, self.n = self.n, self.n + PACKET
        return np.arange(start, self.n, dtype=np.float32)


def started(codec: str = "opus", pre_skip: int = 156) -> OutputAudioStarted:
    return OutputAudioStarted(
        event_id="e",
        response_id="r",
        response_number=1,
        codec=codec,
        sample_rate_hz=24000,
        packet_ms=20,
        pre_skip_samples=pre_skip,
    )


def done(n_samples: int, n_packets: int) -> OutputAudioDone:
    return OutputAudioDone(
        event_id="e", response_id="r", n_samples=n_samples, duration_ms=0, n_packets=n_packets
    )


def frame(codec: str = "opus", payload: bytes = b"x") -> AudioFrame:
    return AudioFrame(codec=codec, response_number=1, media_time_ms=0, payload=payload)


@pytest.mark.parametrize("n_samples", [1, 323, 324, 325, 803, 804])
def test_opus_is_cut_to_the_announced_samples(n_samples):
    audio = ReceivedAudio(started(), CountingDecoder)
    n_packets = -(-(n_samples + 156) // PACKET)
    blocks = [audio.push(frame(), 0.0) for _ in range(n_packets)]
    blocks.append(audio.finish(done(n_samples, n_packets)))
    assert np.concatenate(blocks).tolist() == list(range(156, 156 + n_samples))
    assert audio.n_samples == n_samples


def test_a_pre_skip_longer_than_a_packet_is_cut_whole():
    audio = ReceivedAudio(started(pre_skip=700), CountingDecoder)
    blocks = [audio.push(frame(), 0.0) for _ in range(3)]
    blocks.append(audio.finish(done(740, 3)))
    assert np.concatenate(blocks).tolist() == list(range(700, 1440))


def test_pcm16_is_given_at_once_and_whole():
    audio = ReceivedAudio(started("pcm16", pre_skip=0), CountingDecoder)
    pcm = audio.push(frame("pcm16", np.array([-32768, 0, 16384], "<i2").tobytes()), 0.0)
    assert pcm.tolist() == [-1.0, 0.0, 0.5]
    assert len(audio.finish(done(3, 1))) == 0


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_is_given_at_once_and_whole(law):
    audio = ReceivedAudio(started(law, pre_skip=0), CountingDecoder)
    sent = np.array([-16000, 0, 16000], np.int16)
    pcm = audio.push(frame(law, G711[law].encode(sent)), 0.0)
    assert pcm * 32768 == pytest.approx(sent, abs=600)
    assert len(audio.finish(done(3, 1))) == 0


@pytest.mark.parametrize(("n_samples", "n_packets"), [(2000, 2), (300, 3)])
def test_a_wrong_announcement_is_an_error(n_samples, n_packets):
    audio = ReceivedAudio(started(), CountingDecoder)
    for _ in range(2):
        audio.push(frame(), 0.0)
    with pytest.raises(ProtocolError, match="announced"):
        audio.finish(done(n_samples, n_packets))


def test_undecoded_audio_still_counts():
    audio = ReceivedAudio(started(), None)
    assert len(audio.push(frame(payload=b"abc"), 0.0)) == 0
    audio.finish(done(324, 1))
    assert (audio.n_samples, audio.n_packets, audio.n_bytes) == (324, 1, 3)


def test_gaps_are_what_a_listener_would_hear():
    log = PlayoutLog()
    for received_s in (1.0, 1.0, 1.05, 1.06):  # 20 ms each: the third is due at 1.04
        log.add(0.02, received_s)
    assert (log.first_s, log.n_gaps) == (1.0, 1)
    assert log.gap_s == pytest.approx(0.01)


def test_a_gap_moves_what_follows():
    """One late frame is one gap: those after it are due later by as much."""
    log = PlayoutLog()
    for received_s in (0.0, 5.0, 5.02, 5.04):
        log.add(0.02, received_s)
    assert log.n_gaps == 1

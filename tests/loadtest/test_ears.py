"""Frames of the wire as a listener needs them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from loadtest.traffic.ears import Ears, Tape, arrivals_of, play
from realtime.audio.opus import OpusEncoder
from realtime.client.received_audio import ReceivedAudio
from realtime.errors import ProtocolError
from realtime.events import OutputAudioDone, OutputAudioStarted
from realtime.frames import AudioFrame

RATE_HZ = 24_000
PRE_SKIP = 156


def audio_of(codec: str, n_samples: int | None, n_packets: int, pre_skip: int = 0) -> ReceivedAudio:
    audio = ReceivedAudio(
        OutputAudioStarted(
            response_id="r",
            response_number=1,
            codec=codec,
            sample_rate_hz=RATE_HZ,
            packet_ms=20,
            pre_skip_samples=pre_skip,
        ),
        None,
    )
    if n_samples is not None:
        audio.finish(
            OutputAudioDone(
                response_id="r", n_samples=n_samples, duration_ms=0, n_packets=n_packets
            )
        )
    return audio


def tape_of(codec: str, *payloads: bytes) -> Tape:
    tape = Tape()
    for number, payload in enumerate(payloads):
        frame = AudioFrame(codec=codec, response_number=1, media_time_ms=0, payload=payload)
        tape.add(frame, 100.0 + 0.02 * number)
    return tape


def durations(audio: ReceivedAudio, tape: Tape) -> list[int]:
    return [round(one.duration_s * RATE_HZ) for one in arrivals_of(tape, audio, 100.0)]


def test_the_codec_s_delay_and_padding_are_no_sound():
    tape = tape_of("opus", b"1", b"2", b"3")
    assert durations(audio_of("opus", 1000, 3, PRE_SKIP), tape) == [480 - PRE_SKIP, 480, 196]
    assert durations(audio_of("opus", None, 3, PRE_SKIP), tape) == [480 - PRE_SKIP, 480, 480]
    assert durations(audio_of("opus", 100, 3, 700), tape) == [0, 100, 0]


def test_pcm_lasts_as_long_as_its_samples():
    tape = tape_of("pcm16", bytes(2 * 480), bytes(2 * 7))
    assert durations(audio_of("pcm16", 487, 2), tape) == [480, 7]


def test_times_count_from_the_start_of_the_run():
    [one, other] = arrivals_of(tape_of("opus", b"1", b"2"), audio_of("opus", None, 2), 90.0)
    assert one.received_s == pytest.approx(10.0)
    assert other.received_s == pytest.approx(10.02)


def packets(n: int) -> list[bytes]:
    """A loud tone, in Opus."""
    encoder = OpusEncoder(sample_rate_hz=RATE_HZ, bitrate_bps=32_000, complexity=5)
    at = np.arange(n * 480) / RATE_HZ
    pcm = (0.3 * np.sin(2 * np.pi * 330 * at)).astype(np.float32)
    return [encoder.encode(block) for block in pcm.reshape(n, 480)]


def test_opus_is_decoded_and_its_first_sound_found():
    tape = tape_of("opus", *packets(5))
    found = play(tape, audio_of("opus", 5 * 480 - PRE_SKIP, 5, PRE_SKIP), 100.0)
    assert found.audio_s == pytest.approx(0.1 - PRE_SKIP / RATE_HZ)
    assert 0 <= found.first_sound_s < 0.01
    # The first packet lasts 6.5 ms less than the 20 ms between packets; the others just that.
    assert found.listening[0].n_underruns == 1
    assert found.listening[100].n_underruns == 0


@pytest.mark.parametrize(("n_samples", "n_packets"), [(4000, 5), (2000, 4)])
def test_other_audio_than_announced_is_a_fault(n_samples, n_packets):
    tape = tape_of("opus", *packets(5))

    async def scenario() -> None:
        ears = Ears()
        try:
            await ears.hear(tape, audio_of("opus", n_samples, n_packets, PRE_SKIP), 0.0)
        finally:
            ears.close()

    with pytest.raises(ProtocolError, match="announced"):
        asyncio.run(scenario())

"""The main job, whole: a server process, a socket, the real model, and words that can be read back.

The packets are decoded by PyAV's own decoder, not by the library that encoded them, and the words
are read by a speech recogniser that knows nothing of this project.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import av
import jiwer
import numpy as np
import pytest

from realtime.audio.files import read_audio
from realtime.client.speech import SpeechClient
from realtime.events import OutputPatch, ResponsePatch, SessionPatch

pytestmark = [pytest.mark.weights, pytest.mark.slow]

FOX = "The quick brown fox jumps over the lazy dog."
FOX_WORDS = "the quick brown fox jumps over the lazy dog"
MAX_WER = 0.23  # two words of nine: Whisper base itself errs on good recordings
OPUS_RATE_HZ = 48_000
# The frames of two takes are the same; the sizes of the chunks in which they become samples follow
# the clock, and the batch follows the company. Both round differently, by a step of 16 bits.
MAX_STEP = 2 / 32768


def decode_with_pyav(packets: list[bytes]) -> np.ndarray:
    """Bare Opus packets to float32 at 48 kHz, by FFmpeg's own decoder."""
    decoder = av.CodecContext.create("opus", "r")
    decoder.sample_rate = OPUS_RATE_HZ
    decoder.layout = "mono"
    to_float = av.AudioResampler(format="flt", layout="mono", rate=OPUS_RATE_HZ)
    blocks = []
    for packet in packets:
        for frame in decoder.decode(av.Packet(packet)):
            blocks += [out.to_ndarray()[0] for out in to_float.resample(frame)]
    return np.concatenate(blocks)


def speak_packets(url: str, text: str):
    """Packets, the event that announced them, and the result."""

    async def run():
        async with SpeechClient(url, is_decoding=False) as client:
            speech = await client.speak(text)
            packets = [frame.payload async for frame in speech.frames()]
            return packets, speech.started, speech.result

    return asyncio.run(run())


def speak_pcm(url: str, text: str, **overrides: object):
    """Samples and their rate, as PCM16 on the wire."""

    async def run():
        session = SessionPatch(output=OutputPatch(codec="pcm16"))
        async with SpeechClient(url, session=session) as client:
            speech = await client.speak(text, overrides=ResponsePatch(**overrides))
            pcm = await speech.pcm()
            return pcm, speech.sample_rate_hz

    return asyncio.run(run())


def is_same_take(one: np.ndarray, other: np.ndarray) -> bool:
    return len(one) == len(other) and float(np.abs(one - other).max()) <= MAX_STEP


def test_words_go_in_and_the_same_words_come_out(pico_url, read_back):
    packets, started, result = speak_packets(pico_url, FOX)
    pcm = decode_with_pyav(packets)
    scale = OPUS_RATE_HZ // started.sample_rate_hz
    first = started.pre_skip_samples * scale
    kept = pcm[first : first + result.n_samples * scale]
    assert len(kept) == result.n_samples * scale, "the announced samples are all there"
    assert jiwer.wer(FOX_WORDS, read_back(kept, OPUS_RATE_HZ)) <= MAX_WER
    assert 1.5 < result.audio_s < 6.0


def test_speech_begins_while_it_is_still_being_generated(pico_url):
    """Packets of one chunk come together; a whole utterance in one piece would be one burst."""

    async def run():
        async with SpeechClient(pico_url, is_decoding=False) as client:
            speech = await client.speak(" ".join([FOX] * 3))
            loop = asyncio.get_running_loop()
            arrivals = [loop.time() async for _ in speech.frames()]
            return arrivals, speech.result

    arrivals, result = asyncio.run(run())
    assert result.ttfa_s < result.total_s / 2
    bursts = np.count_nonzero(np.diff(arrivals) > 0.01)
    assert bursts >= 3


def test_two_takes_with_one_seed_are_the_same_and_another_seed_is_not(pico_url):
    takes = [speak_pcm(pico_url, FOX, options={"seed": seed})[0] for seed in (7, 7, 8)]
    assert is_same_take(takes[0], takes[1])
    assert not is_same_take(takes[0], takes[2])


def test_company_does_not_change_a_take(pico_url):
    """The same seed alone and beside three others."""
    alone, _ = speak_pcm(pico_url, FOX, options={"seed": 11})

    async def run():
        session = SessionPatch(output=OutputPatch(codec="pcm16"))
        async with SpeechClient(pico_url, session=session) as client:
            others = [SpeechClient(pico_url) for _ in range(3)]
            for other in others:
                await other.connect()
            running = [await other.speak(" ".join([FOX] * 2)) for other in others]
            speech = await client.speak(FOX, overrides=ResponsePatch(options={"seed": 11}))
            pcm = await speech.pcm()
            for one in running:
                await one.wait()
            for other in others:
                await other.close()
            return pcm

    in_company = asyncio.run(run())
    assert is_same_take(in_company, alone)


def test_streamed_text_is_spoken_as_one(pico_url, read_back):
    async def run():
        async def deltas():
            for word in FOX.split(" "):
                yield word + " "

        async with SpeechClient(pico_url) as client:
            speech = await client.speak(deltas())
            return await speech.pcm(), speech.sample_rate_hz

    pcm, rate_hz = asyncio.run(run())
    assert jiwer.wer(FOX_WORDS, read_back(pcm, rate_hz)) <= MAX_WER


@pytest.mark.parametrize("suffix", [".wav", ".opus"])
def test_say_writes_a_file_that_can_be_read_back(pico_url, read_back, tmp_path, suffix):
    path = tmp_path / f"fox{suffix}"
    command = [sys.executable, "-m", "realtime.cli", "say", FOX, "--url", pico_url]
    said = subprocess.run(
        [*command, "-o", str(path), "--json"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    pcm, rate_hz = read_audio(path)
    assert len(pcm) / rate_hz == pytest.approx(report["audio_s"], abs=0.01)
    assert jiwer.wer(FOX_WORDS, read_back(pcm, rate_hz)) <= MAX_WER

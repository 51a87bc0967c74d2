"""Silero VAD in plain torch against the published network, and its batching over sessions."""

import asyncio
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from realtime.agent.base import FRAME_SAMPLES, HEARD_RATE_HZ
from realtime.agent.vad import (
    SileroDetector,
    SileroVad,
    VadMissingError,
    VadState,
    load_vad,
    load_weights,
    weights_path,
)
from realtime.conversation.endpointing import Endpointer, EndpointSettings, SpeechStarted
from realtime.conversation.listener import levels_db
from realtime.workers import Workers
from tests.realtime.sounds import cough, noise, silence, speech_like, tones


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return load_vad()


def frames(n_frames: int, seed: int) -> np.ndarray:
    """Loud and soft noise with tones: far from what the network was made for, so a hard test."""
    rng = np.random.default_rng(seed)
    n = n_frames * FRAME_SAMPLES
    at_s = np.arange(n) / HEARD_RATE_HZ
    tone = np.sin(2 * np.pi * 150 * at_s) * np.sin(2 * np.pi * 3 * at_s)
    return (0.3 * tone + 0.05 * rng.standard_normal(n)).astype(np.float32)


def published(pcm: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        network = torch.jit.load(weights_path(), map_location="cpu")
    with torch.no_grad():
        heard = [
            float(network(torch.from_numpy(frame.copy()).unsqueeze(0), HEARD_RATE_HZ))
            for frame in pcm.reshape(-1, FRAME_SAMPLES)
        ]
    return np.array(heard)


@pytest.mark.parametrize("seed", [1, 2])
def test_equals_the_published_network(vad, seed):
    pcm = np.concatenate([frames(20, seed), speech_like(1.024, seed=seed), silence(0.32)])
    (heard,) = vad.probabilities([VadState()], [pcm])
    # The same operations in another order of sums.
    assert np.abs(np.array(heard) - published(pcm)).max() < 1e-4


def test_pieces_and_neighbours_leave_no_mark(vad):
    one, other = frames(12, 3), frames(7, 4)
    (whole,) = vad.probabilities([VadState()], [one])
    state, neighbour = VadState(), VadState()
    first, _ = vad.probabilities([state, neighbour], [one[: 5 * FRAME_SAMPLES], other])
    _, rest = vad.probabilities([neighbour, state], [other, one[5 * FRAME_SAMPLES :]])
    assert np.allclose([*first, *rest], whole, atol=1e-5)


@pytest.mark.parametrize("make", [silence, noise])
def test_silence_and_noise_are_no_speech(vad, make):
    (heard,) = vad.probabilities([VadState()], [make(4.096)])
    assert max(heard) < 0.3


def events_in(vad: SileroVad, pcm: np.ndarray, *, is_agent_speaking: bool = False) -> list:
    """What the turns of a session are made of."""

    async def scenario():
        workers = Workers(1)
        heard = await SileroDetector(vad, workers).open_track().probabilities(pcm)
        workers.close()
        return heard

    endpointer = Endpointer(EndpointSettings())
    events = []
    for one, level_db in zip(asyncio.run(scenario()), levels_db(pcm), strict=True):
        events += endpointer.push(one, level_db, 0.0, is_agent_speaking=is_agent_speaking)
    return events


MINUTES = {"silence": silence(60), "noise": noise(60)} | {
    f"tones {seed}": tones(60, seed=seed) for seed in range(8)
}


@pytest.mark.parametrize("name", MINUTES)
def test_no_minute_without_a_voice_starts_a_turn(vad, name):
    """The network alone takes two of the eight minutes of chords (0 and 5) for speech."""
    assert events_in(vad, MINUTES[name]) == []


@pytest.mark.parametrize("seconds", [0.2, 0.3])
def test_a_cough_does_not_interrupt_and_a_word_does(vad, seconds):
    coughs = [cough(seconds, seed=seed) for seed in range(24)]
    assert [events_in(vad, one, is_agent_speaking=True) for one in coughs] == [[]] * 24
    word = np.concatenate([silence(1.0), speech_like(1.0)])
    started, *_ = events_in(vad, word, is_agent_speaking=True)
    assert isinstance(started, SpeechStarted)


def test_a_voice_over_music_starts_one(vad):
    pcm = tones(6.016)
    pcm[2 * HEARD_RATE_HZ : 4 * HEARD_RATE_HZ] += speech_like(2.0)[: 2 * HEARD_RATE_HZ]
    started, *_ = events_in(vad, pcm)
    assert isinstance(started, SpeechStarted)
    assert 1.6 < started.start / HEARD_RATE_HZ < 2.2


def test_a_voice_is_heard_after_music_and_a_second_of_silence(vad):
    """The network alone misses this voice: its recurrent state has been dulled."""

    async def scenario():
        workers = Workers(1)
        track = SileroDetector(vad, workers).open_track()
        before = await track.probabilities(np.concatenate([tones(61.44), silence(1.5)]))
        voice = await track.probabilities(speech_like(2.048))
        workers.close()
        assert sum(one > 0.5 for one in before) < 4
        assert sum(one > 0.5 for one in voice) > 0.8 * len(voice)

    asyncio.run(scenario())


def test_another_file_is_refused(tmp_path):
    other = tmp_path / "silero_vad.jit"
    with pytest.raises(VadMissingError, match="silero_vad"):
        load_weights(other)
    other.write_bytes(b"not these")
    with pytest.raises(VadMissingError, match="SHA-256"):
        load_weights(other)


@dataclass
class CountingVad:
    """Counts calls; says the first sample of each frame."""

    n_calls: int = 0
    sizes: tuple[int, ...] = ()

    def probabilities(self, states, audio):
        self.n_calls += 1
        self.sizes = (*self.sizes, len(states))
        if any(pcm[0] < 0 for pcm in audio):
            raise ValueError("a bug")
        return [pcm[::FRAME_SAMPLES].tolist() for pcm in audio]


def test_sessions_share_calls_and_get_their_own():
    async def scenario():
        workers = Workers(1)
        vad = CountingVad()
        detector = SileroDetector(vad, workers)
        tracks = [detector.open_track() for _ in range(20)]
        pcm = [np.full(2 * FRAME_SAMPLES, n, dtype=np.float32) for n in range(20)]
        heard = await asyncio.gather(
            *(track.probabilities(one) for track, one in zip(tracks, pcm, strict=True))
        )
        workers.close()
        assert [list(one) for one in heard] == [[n, n] for n in range(20)]
        assert vad.n_calls <= 2

    asyncio.run(scenario())


def test_a_fault_reaches_its_callers_and_the_next_call_works():
    async def scenario():
        workers = Workers(1)
        track = SileroDetector(CountingVad(), workers).open_track()
        with pytest.raises(ValueError, match="a bug"):
            await track.probabilities(np.full(FRAME_SAMPLES, -1, dtype=np.float32))
        assert list(await track.probabilities(np.ones(FRAME_SAMPLES, np.float32))) == [1.0]
        workers.close()

    asyncio.run(scenario())


def test_a_caller_that_leaves_does_not_disturb_the_others():
    async def scenario():
        workers = Workers(1)
        detector = SileroDetector(CountingVad(), workers)
        pcm = np.ones(FRAME_SAMPLES, np.float32)
        leaving = asyncio.create_task(detector.open_track().probabilities(pcm))
        staying = asyncio.create_task(detector.open_track().probabilities(pcm))
        await asyncio.sleep(0)
        leaving.cancel()
        assert list(await staying) == [1.0]
        workers.close()

    asyncio.run(scenario())

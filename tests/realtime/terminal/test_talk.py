"""A conversation by microphone and loudspeaker, with devices that a test can look into."""

from __future__ import annotations

import asyncio
import importlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from realtime.client.speech import ClientError
from realtime.terminal import talk as talking
from realtime.terminal.sound import NoSoundError
from realtime.terminal.talk import FRAME_SAMPLES, MICROPHONE_HZ, talk_by_microphone
from tests.realtime.harness import run, until
from tests.realtime.talk_harness import LOUD, talk


class FakeMicrophone:
    """Hears a turn at once: speech, then silence."""

    def __init__(self, *, callback, **_: object) -> None:
        self.callback = callback

    def __enter__(self) -> FakeMicrophone:
        for level, n_frames in ((LOUD, 32), (0.0, 40)):
            for _ in range(n_frames):
                self.callback(np.full((FRAME_SAMPLES, 1), level, np.float32), FRAME_SAMPLES)
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakePlayer:
    """Keeps what it plays."""

    def __init__(self) -> None:
        self.n_samples = 0
        self.is_closed = threading.Event()

    def __enter__(self) -> FakePlayer:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed.set()

    def write(self, pcm: np.ndarray) -> None:
        self.n_samples += len(pcm)


@pytest.fixture
def player(monkeypatch) -> FakePlayer:
    device = SimpleNamespace(InputStream=FakeMicrophone)
    monkeypatch.setattr(talking, "_microphone", lambda: device)
    one = FakePlayer()
    monkeypatch.setattr(talking, "open_player", lambda _: one)
    return one


def test_what_the_microphone_hears_is_answered_by_the_loudspeaker(player):
    shown = []

    async def scenario() -> None:
        async with talk() as one:
            at = f"ws://127.0.0.1:{one.port}"
            task = asyncio.create_task(talk_by_microphone(at, lambda *turn: shown.append(turn)))
            await until(lambda: len(shown) >= 3 and player.n_samples >= talking.PLAYED_HZ * 0.48)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(scenario)
    assert shown[1:] == [("you", "hello"), ("parley", "Good day to you.")]
    assert player.is_closed.is_set()


def test_without_a_server_the_loudspeaker_is_closed_again(player):
    async def scenario() -> None:
        with pytest.raises(ClientError):
            await talk_by_microphone("ws://127.0.0.1:9", lambda *_: None)

    run(scenario)
    assert player.is_closed.is_set()


def test_no_microphone_is_said_with_what_to_do(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NoSoundError, match=r"--in question\.wav"):
        talking._microphone()


def test_an_interruption_throws_away_what_was_not_played():
    assert MICROPHONE_HZ * 0.02 == FRAME_SAMPLES
    player = FakePlayer()
    speaker = talking._Loudspeaker(player)
    answer = SimpleNamespace(info=SimpleNamespace(id="a"), sample_rate_hz=talking.PLAYED_HZ)
    speaker.on_sound(answer, np.zeros(48_000, np.float32))
    speaker.clear()
    speaker.on_sound(answer, np.zeros(480, np.float32))
    speaker._blocks.put(None)
    speaker.run()
    assert player.n_samples == 480

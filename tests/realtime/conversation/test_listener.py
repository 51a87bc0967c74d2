"""One session's ears: positions stay right across commits, clears and changes of mode."""

import asyncio

import numpy as np
import pytest

from realtime.conversation.endpointing import EndpointSettings, SpeechStarted, TurnEnded
from realtime.conversation.input_audio import Piece
from realtime.conversation.listener import MAX_BUFFER_S, Listener, levels_db
from realtime.errors import ProtocolError
from realtime.workers import Workers
from tests.realtime.talk_harness import LOUD, LoudnessDetector, ManualClock

HANDS_FREE = EndpointSettings()


class Ears:
    """A listener and what it has been told."""

    def __init__(self, settings: EndpointSettings | None) -> None:
        self.clock = ManualClock()
        self.workers = Workers(1)
        self.listener = Listener(LoudnessDetector(), self.workers, self.clock, settings)

    async def hear(self, *parts: tuple[float, float]) -> list:
        samples = [np.full(round(ms * 16), round(level * 32767), "<i2") for level, ms in parts]
        piece = Piece(codec="pcm16", payload=np.concatenate(samples).tobytes(), rate_hz=16000)
        events, faults = await self.listener.hear([piece], is_agent_speaking=lambda: False)
        assert not faults
        return events


def scenario(settings):
    """Run an async test with ears."""

    def decorate(function):
        def test():
            async def run():
                ears = Ears(settings)
                await function(ears)
                ears.workers.close()

            asyncio.run(run())

        return test

    return decorate


async def turn_of(ears) -> np.ndarray:
    events = await ears.hear((0.0, 400), (LOUD, 640), (0.0, 640))
    started, ended = events[0], events[-1]
    assert isinstance(started, SpeechStarted)
    assert isinstance(ended, TurnEnded)
    return ears.listener.cut(ended.start, ended.end)


def n_loud(pcm: np.ndarray) -> int:
    return int((np.abs(pcm) > 0.1).sum())


@scenario(HANDS_FREE)
async def test_a_turn_holds_all_its_speech(ears):
    for _ in range(3):
        assert n_loud(await turn_of(ears)) == 640 * 16
        ears.listener.let_go()


@scenario(HANDS_FREE)
async def test_after_a_commit_by_hand_at_any_sample(ears):
    await ears.hear((LOUD, 333))
    pcm, has_voice = await ears.listener.commit()
    assert has_voice
    assert len(pcm) == 333 * 16
    assert n_loud(await turn_of(ears)) == 640 * 16


@scenario(HANDS_FREE)
async def test_the_clock_ends_no_turn_that_is_being_committed(ears):
    await ears.hear((LOUD, 333))
    ears.clock.now_s += 10.0
    committing = asyncio.create_task(ears.listener.commit())
    await asyncio.sleep(0)
    assert ears.listener.check() == []
    assert len((await committing)[0]) == 333 * 16
    assert ears.listener.check() == []


@scenario(HANDS_FREE)
async def test_after_a_clear_at_any_sample(ears):
    await ears.hear((LOUD, 777))
    ears.listener.clear()
    assert not ears.listener.is_speaking
    assert n_loud(await turn_of(ears)) == 640 * 16


@scenario(None)
async def test_from_push_to_talk_to_hands_free(ears):
    assert await ears.hear((LOUD, 1001)) == []
    ears.listener.configure(HANDS_FREE)
    assert n_loud(await turn_of(ears)) == 640 * 16


@scenario(HANDS_FREE)
async def test_from_hands_free_to_push_to_talk(ears):
    await ears.hear((LOUD, 1001))
    ears.listener.configure(None)
    assert not ears.listener.is_speaking
    assert await ears.hear((LOUD, 500)) == []
    pcm, _ = await ears.listener.commit()
    assert len(pcm) == 1501 * 16


@scenario(None)
async def test_a_commit_without_a_voice_says_so(ears):
    await ears.hear((0.0, 500))
    assert (await ears.listener.commit())[1] is False
    await ears.hear((LOUD, 100), (0.0, 500))
    assert (await ears.listener.commit())[1] is True
    with pytest.raises(ProtocolError, match=r"buffer only has 0\.00 ms"):
        await ears.listener.commit()


@scenario(HANDS_FREE)
async def test_hands_free_silence_is_not_kept(ears):
    for _ in range(60):
        await ears.hear((0.0, 1000))
        ears.listener.let_go()
    pcm, _ = await ears.listener.commit()
    assert len(pcm) < 16000


@scenario(None)
async def test_a_full_buffer_refuses_more_once(ears):
    second = Piece(codec="pcm16", payload=bytes(32000), rate_hz=16000)
    n = round(MAX_BUFFER_S)
    _, faults = await ears.listener.hear([second] * n, is_agent_speaking=lambda: False)
    assert faults == []
    _, faults = await ears.listener.hear([second], is_agent_speaking=lambda: False)
    assert [fault.code for fault in faults] == ["input_audio_buffer_full"]
    _, faults = await ears.listener.hear([second], is_agent_speaking=lambda: False)
    assert faults == []
    ears.listener.clear()
    assert await ears.hear((LOUD, 200)) == []
    assert len((await ears.listener.commit())[0]) == 3200


def test_levels():
    frames = np.concatenate([np.ones(512), np.full(512, 0.1), np.zeros(512)]).astype(np.float32)
    assert np.allclose(levels_db(frames), [0.0, -20.0, -120.0], atol=0.01)

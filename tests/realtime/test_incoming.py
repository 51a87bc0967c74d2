"""The line of what a client sends: in order, and bounded."""

import asyncio

import pytest

from realtime.conversation_protocol import InputAudioClear, InputAudioCommit
from realtime.errors import ProtocolError
from realtime.incoming import MAX_AUDIO_BYTES, MAX_EVENTS, Incoming
from realtime.input_audio import Piece
from realtime.socket_link import SessionEndError


def piece(n_bytes: int = 4) -> Piece:
    return Piece(codec="pcm16", payload=bytes(n_bytes), rate_hz=16000)


def test_audio_up_to_the_next_event_comes_together():
    async def scenario():
        incoming = Incoming()
        first, second, third = piece(2), piece(4), piece(6)
        incoming.put_audio(first)
        incoming.put_audio(second)
        incoming.put(InputAudioCommit())
        incoming.put_audio(third)
        assert await incoming.next() == [first, second]
        assert isinstance(await incoming.next(), InputAudioCommit)
        assert await incoming.next() == [third]
        assert incoming.is_empty

    asyncio.run(scenario())


def test_it_waits_for_more():
    async def scenario():
        incoming = Incoming()
        waiting = asyncio.create_task(incoming.next())
        await asyncio.sleep(0)
        incoming.put(InputAudioClear())
        assert isinstance(await waiting, InputAudioClear)

    asyncio.run(scenario())


def test_too_much_audio_is_refused_and_room_comes_back():
    async def scenario():
        incoming = Incoming()
        incoming.put_audio(piece(MAX_AUDIO_BYTES))
        with pytest.raises(ProtocolError) as caught:
            incoming.put_audio(piece(1))
        assert caught.value.code == "input_audio_buffer_full"
        await incoming.next()
        incoming.put_audio(piece(1))

    asyncio.run(scenario())


@pytest.mark.parametrize("is_audio", [True, False])
def test_too_many_messages_end_the_session(is_audio):
    async def scenario():
        incoming = Incoming()
        for _ in range(MAX_EVENTS):
            incoming.put(InputAudioClear())
        with pytest.raises(SessionEndError) as caught:
            incoming.put_audio(piece()) if is_audio else incoming.put(InputAudioClear())
        assert caught.value.code == 1008

    asyncio.run(scenario())

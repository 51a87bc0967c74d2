"""The line of what a client sends: in order, and bounded."""

import asyncio
from dataclasses import replace

import pytest

from realtime.conversation.incoming import (
    JOINED_BYTES,
    MAX_AUDIO_BYTES,
    MAX_EVENT_BYTES,
    MAX_EVENTS,
    Incoming,
)
from realtime.conversation.input_audio import Piece
from realtime.conversation.protocol import InputAudioClear, InputAudioCommit
from realtime.errors import ProtocolError
from realtime.socket_link import SessionEndError


def piece(n_bytes: int = 4) -> Piece:
    return Piece(codec="pcm16", payload=bytes(n_bytes), rate_hz=16000)


def test_audio_up_to_the_next_event_comes_together():
    async def scenario():
        incoming = Incoming()
        first, second = piece(JOINED_BYTES), piece(4)
        third = replace(piece(6), codec="opus")
        incoming.put_audio(first)
        incoming.put_audio(second)
        incoming.put(InputAudioCommit(), 40)
        incoming.put_audio(third)
        incoming.put_audio(third)
        assert await incoming.next() == [first, second]
        assert isinstance(await incoming.next(), InputAudioCommit)
        assert await incoming.next() == [third, third]
        assert incoming.is_empty

    asyncio.run(scenario())


def test_small_pieces_are_joined():
    async def scenario():
        incoming = Incoming()
        for _ in range(MAX_EVENTS + 5):
            incoming.put_audio(piece(1))
        assert await incoming.next() == [piece(MAX_EVENTS + 5)]
        incoming.put_audio(piece(2))
        incoming.put_audio(replace(piece(2), rate_hz=8000))
        assert await incoming.next() == [piece(2), replace(piece(2), rate_hz=8000)]

    asyncio.run(scenario())


def test_it_waits_for_more():
    async def scenario():
        incoming = Incoming()
        waiting = asyncio.create_task(incoming.next())
        await asyncio.sleep(0)
        incoming.put(InputAudioClear(), 40)
        assert isinstance(await waiting, InputAudioClear)

    asyncio.run(scenario())


def test_too_many_bytes_of_events_are_refused_and_room_comes_back():
    async def scenario():
        incoming = Incoming()
        incoming.put(InputAudioClear(), MAX_EVENT_BYTES - 1)
        with pytest.raises(ProtocolError) as caught:
            incoming.put(InputAudioCommit(), 2)
        assert caught.value.code == "too_many_events"
        await incoming.next()
        incoming.put(InputAudioCommit(), 2)
        assert isinstance(await incoming.next(), InputAudioCommit)

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
            incoming.put(InputAudioClear(), 40)
        with pytest.raises(SessionEndError) as caught:
            incoming.put_audio(piece()) if is_audio else incoming.put(InputAudioClear(), 40)
        assert caught.value.code == 1008

    asyncio.run(scenario())


def test_single_bytes_do_not_count_as_messages():
    """4800 appends of one byte ended the session where the machine was busy."""

    async def scenario():
        incoming = Incoming()
        payload = bytes(range(256)) * 40
        for place in range(len(payload)):
            incoming.put_audio(
                Piece(codec="pcm16", payload=payload[place : place + 1], rate_hz=16000)
            )
        assert b"".join(one.payload for one in await incoming.next()) == payload
        for codec in ("pcm16", "opus"):
            incoming.put_audio(Piece(codec=codec, payload=b"ab", rate_hz=48000))
            incoming.put_audio(Piece(codec="opus", payload=b"cd", rate_hz=48000))
        assert [one.payload for one in await incoming.next()] == [b"ab", b"cd", b"ab", b"cd"]

    asyncio.run(scenario())

"""One order for all; audio is bounded, events always go through."""

import asyncio

from realtime.config import SendLimits
from realtime.send_queue import Outgoing, SendQueue

LIMITS = SendLimits(high_s=1.0, low_s=0.25, hard_s=2.0, max_events=3)


def audio(number=1, seconds=0.25, size=10):
    return Outgoing(message=bytes(size), response_number=number, seconds=seconds, n_packets=1)


def event(text="{}"):
    return Outgoing(message=text)


def make(limits=LIMITS):
    pauses = []
    return SendQueue(limits, pauses.append), pauses


def take(queue):
    outgoing = asyncio.run(queue.get())
    queue.sent(outgoing)
    return outgoing.message


def test_order_is_kept_between_events_and_audio():
    queue, _ = make()
    for one in (event("a"), audio(), event("b")):
        queue.put(one)
    assert [take(queue) for _ in range(3)] == ["a", bytes(10), "b"]


def test_the_producer_is_paused_past_the_high_mark_and_let_go_under_the_low_one():
    queue, pauses = make()
    for _ in range(5):
        queue.put(audio())
    assert pauses == [True]
    for _ in range(3):
        take(queue)
    assert pauses == [True]
    take(queue)
    assert pauses == [True, False]


def test_bytes_count_as_well_as_seconds():
    queue, pauses = make(SendLimits(high_bytes=100, low_bytes=10, hard_bytes=200))
    queue.put(audio(size=101))
    assert pauses == [True]
    queue.put(audio(size=100))
    assert queue.is_over_hard_mark


def test_events_never_pause_but_too_many_are_over_the_hard_mark():
    queue, pauses = make()
    for _ in range(4):
        queue.put(event())
    assert (pauses, queue.is_over_hard_mark) == ([], True)


def test_a_frame_counts_until_the_socket_has_taken_it():
    queue, _ = make()
    queue.put(audio())
    outgoing = asyncio.run(queue.get())
    assert (queue.seconds, queue.n_bytes) == (0.25, 10)
    queue.sent(outgoing)
    assert (queue.seconds, queue.n_bytes) == (0.0, 0)


def test_audio_of_one_response_can_be_dropped_and_events_stay():
    queue, pauses = make()
    for one in (audio(1), event("a"), audio(2), *(audio(1) for _ in range(4)), event("b")):
        queue.put(one)
    assert queue.drop_audio(1) == 5
    assert pauses == [True, False]
    assert [take(queue) for _ in range(3)] == ["a", bytes(10), "b"]


def test_who_waits_for_room_waits_while_paused():
    async def scenario():
        queue, _ = make()
        for _ in range(5):
            queue.put(audio())
        waiter = asyncio.create_task(queue.wait_room())
        await asyncio.sleep(0)
        assert not waiter.done()
        for _ in range(4):
            queue.sent(await queue.get())
        await waiter

    asyncio.run(scenario())

"""The inbox keeps order, drops nothing and wakes the engine."""

from __future__ import annotations

import threading

from engine.inbox import Inbox
from engine.types import AbortStream, StreamId


def _command(n: int) -> AbortStream:
    return AbortStream(stream_id=StreamId(n))


def test_commands_come_in_order_and_once():
    inbox = Inbox()
    for n in range(3):
        inbox.put(_command(n))
    assert inbox.drain() == [_command(n) for n in range(3)]
    assert inbox.drain() == []


def test_an_empty_inbox_waits_and_a_full_one_does_not():
    inbox = Inbox()
    assert not inbox.wait(0.0)
    inbox.put(_command(1))
    assert inbox.wait(None)
    inbox.drain()
    assert not inbox.wait(0.0)
    inbox.wake()
    assert inbox.wait(None)


def test_a_sleeping_engine_is_woken_by_any_thread():
    inbox = Inbox()
    woken: list[bool] = []
    engine = threading.Thread(target=lambda: woken.append(inbox.wait(30.0)))
    engine.start()
    inbox.put(_command(1))
    engine.join(30.0)
    assert woken == [True]


def test_nothing_is_lost_between_many_writers_and_the_reader():
    inbox = Inbox()
    n_writers, n_each = 4, 500

    def write(writer: int) -> None:
        for n in range(n_each):
            inbox.put(_command(writer * n_each + n))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(n_writers)]
    for thread in writers:
        thread.start()
    got: list[int] = []
    while len(got) < n_writers * n_each:
        assert inbox.wait(30.0), "a command was put and the engine sleeps on"
        got += [command.stream_id for command in inbox.drain()]
    for thread in writers:
        thread.join()
    assert sorted(got) == list(range(n_writers * n_each))
    for writer in range(n_writers):
        own = [n for n in got if n // n_each == writer]
        assert own == sorted(own), "one writer's commands keep their order"

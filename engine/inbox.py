"""The way down: commands from any thread to the engine thread. No torch, no asyncio."""

from __future__ import annotations

import threading
from collections import deque

from engine.types import Command


class Inbox:
    """A mailbox with many writers and one reader.

    It never drops and never blocks a writer. It is bounded by what the gateway lets in: each open
    stream has few commands on the way.
    """

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._has_mail = threading.Event()

    @property
    def n_waiting(self) -> int:
        """Commands that wait. Any thread."""
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Add a command and wake the engine. Any thread."""
        self._commands.append(command)
        self._has_mail.set()

    def wake(self) -> None:
        """Wake the engine without a command (to stop it). Any thread."""
        self._has_mail.set()

    def drain(self) -> list[Command]:
        """Take all commands in the order they came. Engine thread."""
        # NOTE: clear before reading. A command put in between is then either read now or leaves
        # the event set; the other order could lose the wake-up of the last command.
        self._has_mail.clear()
        commands: list[Command] = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there is mail or `timeout_s` passed; True if there is. Engine thread."""
        return self._has_mail.wait(timeout_s)

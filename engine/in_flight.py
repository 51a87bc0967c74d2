"""Steps that were launched and whose results the host has not seen yet. Engine thread.

Where the device works beside the host (`is_overlapped`), a step is collected when the next one has
been launched, so that the device never waits for the host to read. A step that has streams which
have not sounded is collected at once: for them a step later is a step later.

A stream may then be run one row further than it should: after its end, while it starves, or before
its companion has come. The device knows (`SlotState.is_held`): such a row is *void*, it is written
nowhere and draws nothing. The host takes back what it counted for it (`hold`). It has a position
and a page at any rate: those of the last row, which is generated and never fed.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import deadlines
from engine.device_streams import DeviceStreams
from engine.launch import PendingStep
from engine.readback import HostResults, Transfer, read_back, send_back
from engine.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A launched step, and its results on their way."""

    step: PendingStep
    transfers: list[Transfer]

    def results(self) -> HostResults:
        """Wait for them: the one place where the host waits for the device."""
        return read_back(self.step, self.transfers)


class InFlight:
    """The launched steps of a loop, oldest first.

    Args:
        streams: of the device.
        is_overlapped: steps may be collected when the next has been launched.
    """

    def __init__(self, streams: DeviceStreams, *, is_overlapped: bool) -> None:
        self._streams = streams
        self._is_overlapped = is_overlapped
        self._flights: list[Flight] = []

    def add(self, step: PendingStep) -> list[Flight]:
        """Take a launched step; those to collect now, in order.

        A step in which nothing was launched stays nowhere, and all before it are given.
        """
        if step.is_empty:
            return self.take_all()
        self._flights.append(Flight(step=step, transfers=send_back(step, self._streams)))
        n_left = 1 if self._is_overlapped and not _is_awaited(step) else 0
        n_due = len(self._flights) - n_left
        due, self._flights = self._flights[:n_due], self._flights[n_due:]
        return due

    def take_all(self) -> list[Flight]:
        """Every step, to be collected now."""
        due, self._flights = self._flights, []
        return due


def _is_awaited(step: PendingStep) -> bool:
    """Somebody waits for the first sound of a stream that the step works for."""
    return any(deadlines.is_startup(stream) for stream in step.served())


def hold(stream: Stream) -> None:
    """Take back the rows that were launched after the one at hand: the device held the stream."""
    n_void = stream.n_rows_in_flight
    stream.n_void_rows = n_void
    stream.n_rows -= n_void
    for table in stream.sequences[: stream.n_step_rows]:
        table.n_rows -= n_void

"""How long device work took, without waiting for it. Engine thread."""

from __future__ import annotations

from collections.abc import Callable

from engine.device_streams import DeviceStream, Mark

Clock = Callable[[], float]


class Span:
    """The work that is queued in a device stream between its making and `end`.

    Args:
        name: what the work is.
        stream: where it is queued.
    """

    def __init__(self, name: str, stream: DeviceStream) -> None:
        self.name = name
        self.stream = stream
        self.begin: Mark = stream.mark()
        self._end = self.begin

    def end(self) -> None:
        """All of it has been queued."""
        self._end = self.stream.mark()

    def seconds(self) -> float:
        """Seconds of work; only after its results were read."""
        return self._end.seconds_since(self.begin)

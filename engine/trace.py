"""A trace of what the engine does when, in the form that Perfetto and chrome://tracing read.

One process a loop, with a line for the host and one for each device stream, so that it shows which
work ran beside which. Spans of the device are written once its results were read, with its own
times. The form allows a file without its end, so the trace of a server that died can be read too.
Engine thread.

Source: Trace Event Format (Google), complete events (`ph` X), JSON array form.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

from engine.device_streams import Clock, DeviceStream, Mark
from engine.spans import Span

HOST_LINE = 0
"""Thread number of the host; device streams follow in the order in which they are first seen."""

logger = logging.getLogger(__name__)


class Trace(Protocol):
    """What a loop tells of its steps."""

    def begin(self, streams: Iterable[DeviceStream]) -> None:
        """These are the streams of the device. May wait for them."""
        ...

    def enter(self, part: str) -> None:
        """A part of the step begins on the host; the one before it ends."""
        ...

    def leave(self) -> None:
        """The step ends."""
        ...

    def device(self, spans: Iterable[Span]) -> None:
        """Work of the device whose results were read."""
        ...


class NoTrace:
    """Nobody wants to know."""

    def begin(self, streams: Iterable[DeviceStream]) -> None:
        """See `Trace`."""

    def enter(self, part: str) -> None:
        """See `Trace`."""

    def leave(self) -> None:
        """See `Trace`."""

    def device(self, spans: Iterable[Span]) -> None:
        """See `Trace`."""


class TraceFile:
    """The file, which loops may share.

    Args:
        path: of the file; what is there is replaced.
        clock: monotonic seconds, that of the loops.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._out: TextIO | None = path.open("w", encoding="utf-8")
        self._out.write("[\n")
        self._clock = clock
        self._start_s = clock()
        self._n_loops = 0

    def loop(self, name: str) -> LoopTrace:
        """The part of one loop."""
        self._n_loops += 1
        return LoopTrace(self, self._n_loops, name, self._clock)

    def write(self, loop: int, line: int, name: str, begin_s: float, seconds: float) -> None:
        """Add what took `seconds` from `begin_s` of the clock on."""
        times = {"ts": 1e6 * (begin_s - self._start_s), "dur": 1e6 * seconds}
        self._add({"ph": "X", "pid": loop, "tid": line, "name": name, **times})

    def label(self, loop: int, line: int, kind: str, name: str) -> None:
        """Name a loop (`process_name`) or a line (`thread_name`)."""
        self._add({"ph": "M", "pid": loop, "tid": line, "name": kind, "args": {"name": name}})

    def close(self) -> None:
        """End the file; what comes later is left out."""
        out, self._out = self._out, None
        if out is not None:
            out.write("{}]\n")
            out.close()

    def _add(self, event: dict[str, object]) -> None:
        if self._out is None:
            return
        try:
            self._out.write(json.dumps(event) + ",\n")
        except OSError as error:
            # A full disk must not end the speech.
            logger.warning("the trace ends here: %s", error)
            self._out = None


class LoopTrace:
    """The part of one loop; see `TraceFile.loop`."""

    def __init__(self, file: TraceFile, number: int, name: str, clock: Clock) -> None:
        self._file = file
        self._number = number
        self._clock = clock
        self._part = ""
        self._begin_s = 0.0
        self._lines: dict[str, int] = {}
        # By stream: a mark, and what the clock said when the device had come there.
        self._origins: dict[str, tuple[Mark, float]] = {}
        file.label(number, HOST_LINE, "process_name", name)
        file.label(number, HOST_LINE, "thread_name", "host")

    def begin(self, streams: Iterable[DeviceStream]) -> None:
        """See `Trace`; fixes what the times of these streams are counted from."""
        for stream in streams:
            if stream.name in self._lines:
                continue
            line = self._lines[stream.name] = HOST_LINE + 1 + len(self._lines)
            self._file.label(self._number, line, "thread_name", stream.name)
            mark = stream.mark()
            mark.wait()
            self._origins[stream.name] = mark, self._clock()

    def enter(self, part: str) -> None:
        """See `Trace`."""
        self.leave()
        self._part, self._begin_s = part, self._clock()

    def leave(self) -> None:
        """See `Trace`."""
        if self._part:
            seconds = self._clock() - self._begin_s
            self._file.write(self._number, HOST_LINE, self._part, self._begin_s, seconds)
            self._part = ""

    def device(self, spans: Iterable[Span]) -> None:
        """See `Trace`."""
        for span in spans:
            origin, origin_s = self._origins[span.stream.name]
            begin_s = origin_s + span.begin.seconds_since(origin)
            line = self._lines[span.stream.name]
            self._file.write(self._number, line, span.name, begin_s, span.seconds())

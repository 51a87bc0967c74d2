"""A device with streams, time and a memory of who touched what: for tests of order and overlap.

Work takes place when it is called, so values are right whatever the order; what is tested is what a
real device would have been free to do. Each stream and the host has a vector clock: a wait for a
mark takes over what the mark had seen. Two uses of one thing, one of them a write, must be ordered
by such waits; `FakeDevice.races` lists those that are not.

Device time: work of a stream begins when the stream is free, the host has called it and all marks
that the stream waits for have come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from engine.device_streams import DeviceStreams
from tests.engine.harness import FakeClock

HOST = "host"


@dataclass
class Seen:
    """What an actor is sure has been done: its own uses, and those of others, by number."""

    of: dict[str, int] = field(default_factory=dict)

    def take(self, other: Seen) -> None:
        for name, n in other.of.items():
            self.of[name] = max(self.of.get(name, 0), n)


@dataclass(frozen=True)
class FakeMark:
    """A place in a stream, what it was sure of there, and when it came there."""

    device: FakeDevice
    stream: str
    seen: Seen
    at_s: float

    def wait(self) -> None:
        if (HOST, self.stream) in self.device.ignored:
            return
        self.device.host.take(self.seen)
        clock = self.device.clock
        clock.now_s = max(clock.now_s, self.at_s)

    def seconds_since(self, earlier: FakeMark) -> float:
        return self.at_s - earlier.at_s


class FakeStream:
    """A stream of a `FakeDevice`."""

    def __init__(self, device: FakeDevice, name: str) -> None:
        self.device, self.name = device, name
        self.seen = Seen()
        self.free_s = 0.0

    def mark(self) -> FakeMark:
        seen = Seen(dict(self.seen.of))
        return FakeMark(self.device, self.name, seen, max(self.free_s, self.device.clock.now_s))

    def wait(self, mark: FakeMark) -> None:
        if (self.name, mark.stream) not in self.device.ignored:
            self.seen.take(mark.seen)
            self.free_s = max(self.free_s, mark.at_s)

    def finish(self) -> None:
        self.mark().wait()

    @contextmanager
    def queue(self) -> Iterator[None]:
        outer, self.device.current = self.device.current, self
        try:
            yield
        finally:
            self.device.current = outer

    def to_host(self, words: Tensor) -> Tensor:
        self.device.copied(self)
        return words.clone()


class FakeDevice:
    """Streams by name, the uses of things, and the races among them."""

    def __init__(self, clock: FakeClock, *, has_codec_device: bool = False) -> None:
        self.clock = clock
        self.host = Seen()
        self.streams = {
            name: FakeStream(self, name)
            for name in ("lm", "frames", "codec", "copy", "codec copy", "prompt")
        }
        if not has_codec_device:
            self.streams["frames"] = self.streams["codec"]
            self.streams["codec copy"] = self.streams["copy"]
        self.current = self.streams["lm"]
        self.ignored: set[tuple[str, str]] = set()
        self.races: list[str] = []
        self.work: list[tuple[str, str, float, float]] = []
        self._writes: dict[Hashable, tuple[str, int]] = {}
        self._reads: dict[Hashable, dict[str, int]] = {}
        self._results: list[tuple[str, int]] = []
        self._n_results = 0

    def all(self) -> DeviceStreams:
        by_field = {name.replace(" ", "_"): stream for name, stream in self.streams.items()}
        return DeviceStreams(**by_field)

    def use(
        self,
        name: str,
        *,
        reads: Iterable[Hashable] = (),
        writes: Iterable[Hashable] = (),
        seconds: float = 0.0,
    ) -> None:
        """Work called `name` in the current stream."""
        stream = self.current
        stream.seen.take(self.host)
        begin_s = max(stream.free_s, self.clock.now_s)
        stream.free_s = begin_s + seconds
        self.work.append((stream.name, name, begin_s, stream.free_s))
        self._note(stream.name, stream.seen, name, reads, writes)

    def host_use(self, name: str, reads: Iterable[Hashable]) -> None:
        self._note(HOST, self.host, name, reads, ())

    def copied(self, stream: FakeStream) -> None:
        """A copy to the host has been queued: of the results so far that are made beside it."""
        is_apart = self.streams["copy"] is not self.streams["codec copy"]
        kind = None if not is_apart else "pcm" if stream.name == "codec copy" else "rows"
        results = [thing for thing in self._results if kind in (None, thing[0])]
        self._results = [thing for thing in self._results if thing not in results]
        with stream.queue():
            self.use("copy", reads=results, writes=[("copied", thing) for thing in results])

    def result(self, kind: str) -> tuple[str, int]:
        """A new result, `rows` or `pcm`, that the next copy takes along."""
        self._n_results += 1
        self._results.append((kind, self._n_results))
        return self._results[-1]

    def _note(
        self,
        actor: str,
        seen: Seen,
        name: str,
        reads: Iterable[Hashable],
        writes: Iterable[Hashable],
    ) -> None:
        number = seen.of[actor] = seen.of.get(actor, 0) + 1
        for thing in reads:
            self._after(self._writes.get(thing), actor, seen, name, thing)
            self._reads.setdefault(thing, {})[actor] = number
        for thing in writes:
            self._after(self._writes.get(thing), actor, seen, name, thing)
            for other in self._reads.pop(thing, {}).items():
                self._after(other, actor, seen, name, thing)
            self._writes[thing] = (actor, number)

    def _after(
        self, use: tuple[str, int] | None, actor: str, seen: Seen, name: str, thing: Hashable
    ) -> None:
        if use is not None and use[0] != actor and seen.of.get(use[0], 0) < use[1]:
            self.races.append(f"{name} in {actor} uses {thing} before {use[0]} is through with it")

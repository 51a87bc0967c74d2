"""Device streams: queues of work on a device, ordered among each other by marks. Engine thread.

Work in one device stream runs in order; between two of them nothing is ordered but by a mark of one
that the other waits for. What runs where, and the waits that make it right:

- `lm`: prompts, rows, and everything that touches a slot (opening it, its text, its pages).
- `codec`: detokenizer calls, beside the rows of their step. They read frames that the host has
  counted, of rows whose results it has seen, and the state of their own slots: no wait is needed,
  but for a stream that comes back with frames from before (`settle`).
- `frames`: where frames are gathered for `codec`, and leave from if its device is another; else it
  is `codec` itself.
- `copy` (and `codec_copy` on the detokenizer's device): results on their way to the host, after
  `lm` and `codec` have made them.
- `prompt`: what a prompt needs of the device (encoders of speech and voices), for threads that
  plan; at low priority, and waited for by those threads alone.

The host waits for the copy of a step before it takes anything of it for done, and a slot is not
given away while a step that has its stream is under way; so the next stream's work follows.

On a CPU work is done when its call returns: there is one queue, and nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Clock = Callable[[], float]


class Mark(Protocol):
    """A place in a device stream: all work before it."""

    def wait(self) -> None:
        """Let the host wait until the device has come here."""
        ...

    def seconds_since(self, earlier: Mark) -> float:
        """Seconds of the device from an earlier mark to this one; the device has passed both."""
        ...


class DeviceStream(Protocol):
    """One queue of work."""

    @property
    def name(self) -> str:
        """What runs there."""
        ...

    def mark(self) -> Mark:
        """A mark after what was queued so far."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let what is queued from now on wait for a mark of another stream."""
        ...

    def finish(self) -> None:
        """Let the host wait until all that was queued is done."""
        ...

    def queue(self) -> AbstractContextManager[object]:
        """Let torch put work here while the context lasts."""
        ...

    def to_host(self, words: Tensor) -> Tensor:
        """Begin to copy a tensor to the host; it is there when a mark made after this has come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStreams:
    """The streams of one engine loop; see the module docstring."""

    lm: DeviceStream
    frames: DeviceStream
    codec: DeviceStream
    copy: DeviceStream
    codec_copy: DeviceStream
    prompt: DeviceStream

    @property
    def all(self) -> tuple[DeviceStream, ...]:
        """Each stream once."""
        streams = (self.lm, self.frames, self.codec, self.copy, self.codec_copy, self.prompt)
        return tuple(dict.fromkeys(streams))

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Let torch put work in `lm`, and in `codec` what is on a device of the detokenizer's own.

        Torch has a current stream for each device: on one device the inner one stands.
        """
        with self.codec.queue(), self.lm.queue():
            yield

    def finish(self) -> None:
        """Let the host wait for all that was queued, on both devices; for measurements only."""
        for stream in self.all:
            stream.finish()

    def settle(self) -> None:
        """Let chunks that are launched from now on find what was written into slots before."""
        self.frames.wait(self.lm.mark())


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """Let libraries that ask for the current device find this one. Every thread begins with 0."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def make_streams(device: torch.device, codec_device: torch.device, clock: Clock) -> DeviceStreams:
    """The streams for where the LM and the detokenizer are."""
    if device.type != "cuda":
        host = HostStream(clock)
        return DeviceStreams(
            lm=host, frames=host, codec=host, copy=host, codec_copy=host, prompt=host
        )
    is_same = codec_device == device
    codec = CudaStream("codec", codec_device, is_urgent=True)
    copy = CudaStream("copy", device, is_urgent=True)
    return DeviceStreams(
        lm=CudaStream("lm", device, is_urgent=True),
        frames=codec if is_same else CudaStream("frames", device, is_urgent=True),
        codec=codec,
        copy=copy,
        codec_copy=copy if is_same else CudaStream("codec copy", codec_device, is_urgent=True),
        prompt=CudaStream("prompt", device, is_urgent=False),
    )


@dataclass(frozen=True, slots=True)
class HostMark:
    """A moment of the clock: all that was called before has been done."""

    at_s: float

    def wait(self) -> None:
        """Nothing is under way."""

    def seconds_since(self, earlier: Mark) -> float:
        """See `Mark`."""
        assert isinstance(earlier, HostMark), "marks of one device"
        return self.at_s - earlier.at_s


class HostStream:
    """The queue of a device that works while it is called."""

    def __init__(self, clock: Clock, name: str = "cpu") -> None:
        self._clock = clock
        self.name = name

    def mark(self) -> HostMark:
        """See `DeviceStream`."""
        return HostMark(self._clock())

    def wait(self, mark: Mark) -> None:
        """Nothing is under way."""

    def finish(self) -> None:
        """Nothing is under way."""

    def queue(self) -> AbstractContextManager[object]:
        """Torch works at once."""
        return nullcontext()

    def to_host(self, words: Tensor) -> Tensor:
        """It is there."""
        return words


class CudaMark:
    """An event of CUDA."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        """See `Mark`."""
        self.event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        """See `Mark`."""
        assert isinstance(earlier, CudaMark), "marks of one device"
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaStream:
    """A stream of CUDA.

    Args:
        name: what runs there.
        device: where.
        is_urgent: its kernels go before those of streams that are not.
    """

    def __init__(self, name: str, device: torch.device, *, is_urgent: bool) -> None:
        self.name = name
        priority = -1 if is_urgent else 0
        self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch's
            device, priority=priority
        )

    def mark(self) -> CudaMark:
        """See `DeviceStream`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        event.record(self._stream)
        return CudaMark(event)

    def wait(self, mark: Mark) -> None:
        """See `DeviceStream`."""
        assert isinstance(mark, CudaMark), "marks of one device"
        self._stream.wait_event(mark.event)

    def finish(self) -> None:
        """See `DeviceStream`."""
        self._stream.synchronize()

    def queue(self) -> AbstractContextManager[object]:
        """See `DeviceStream`."""
        return torch.cuda.stream(self._stream)

    def to_host(self, words: Tensor) -> Tensor:
        """See `DeviceStream`."""
        pinned = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        return pinned.copy_(words, non_blocking=True)

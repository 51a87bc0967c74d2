"""Calls that are recorded once and replayed: CUDA graphs, or compiled code where there are none.

A *call* is a function without arguments whose shapes are fixed: it reads and writes tensors that
never move, and decides nothing on the host. `Graphs` records one for each key at start and replays
it from then on. What would break a replay silently is refused with a message that names it: a key
that was not recorded, or a tensor that has moved or changed its shape since. Who runs a batch pads
it to a size that was recorded (`engine.static_rows`, `engine.codec_runner`). Engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.batch import Indices
from engine.config import GraphChoice
from engine.device_streams import made_current
from engine.errors import EngineConfigError, GraphError

Outputs = tuple[Tensor, ...]
Call = Callable[[], Outputs]
Key = tuple[Hashable, ...]
Recorder = Callable[[Call], Call]
"""Makes of a call one that does the same to the same tensors, and gives outputs of its own."""

N_CALLS_BEFORE: Final = 2
"""Plain calls before a recording: kernels are chosen, compiled and cached in them, buffers made."""

logger = logging.getLogger(__name__)


class Graphs:
    """The recorded calls of one device stream.

    Args:
        record: `cuda_recorder` or `compiled_recorder`.
    """

    def __init__(self, record: Recorder) -> None:
        self._recorder = record
        self._replays: dict[Key, Call] = {}
        self._used: dict[Key, dict[str, object]] = {}
        self._weights: Callable[[], Mapping[str, Tensor]] = dict
        self._known_weights: dict[str, object] = {}

    @property
    def keys(self) -> tuple[Key, ...]:
        """What was recorded, in order."""
        return tuple(self._replays)

    def record(self, key: Key, call: Call, uses: Mapping[str, object]) -> None:
        """Record a call; it is made several times for that.

        Args:
            key: names the shapes.
            call: does the work.
            uses: tensors and other objects that it works with, by name.

        Raises:
            GraphError: it does what cannot be recorded.
        """
        try:
            self._replays[key] = self._recorder(call)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise GraphError(
                f"{_shown(key)} cannot be recorded (--no-graphs does without): {error}"
            ) from error
        self._used[key] = _identities(uses)
        logger.debug("recorded %s", _shown(key))

    def run(self, key: Key, uses: Mapping[str, object]) -> Outputs:
        """Replay the call of this key.

        Raises:
            GraphError: the key is unknown, or something that the call works with has changed.
        """
        replay = self._replays.get(key)
        if replay is None:
            known = ", ".join(_shown(one) for one in self._replays if one[0] == key[0])
            raise GraphError(f"{_shown(key)} was not recorded; known are {known or 'none such'}")
        _refuse_changes(_shown(key), uses, self._used[key])
        return replay()

    def watch(self, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Remember where the weights of the model are; `weights` gives them by name."""
        self._weights = weights
        self._known_weights = _identities(weights())

    def check(self) -> None:
        """Refuse weights that have moved. Too many to look at in every step."""
        _refuse_changes("all that", self._weights(), self._known_weights)


@dataclass(slots=True)
class _StandIn:
    recorder: Recorder | None = None


_stand_in = _StandIn()


def stand_in(recorder: Recorder | None) -> None:
    """Take this for CUDA graphs, on any device; None: the real ones again. For trials only."""
    _stand_in.recorder = recorder


def make_graphs(choice: GraphChoice, device: torch.device) -> Graphs | None:
    """What records calls on this device, by the settings; None: they are run as they stand.

    Raises:
        EngineConfigError: the device has no CUDA graphs.
    """
    if choice == "compile":
        return Graphs(compiled_recorder())
    if choice == "cuda" and _stand_in.recorder is not None:
        return Graphs(_stand_in.recorder)
    if choice == "cuda" and device.type != "cuda":
        raise EngineConfigError(f"there are no CUDA graphs on {device}")
    is_wanted = choice == "cuda" or (choice == "auto" and device.type == "cuda")
    return Graphs(cuda_recorder(device)) if is_wanted else None


def cuda_recorder(device: torch.device) -> Recorder:
    """Record as CUDA graphs that share one memory pool.

    NOTE: graphs of one pool may reuse each other's memory, so they must run one after another: each
    device stream has a recorder, and a pool, of its own.
    """
    pool = torch.cuda.graph_pool_handle()
    # Kernels keep the priority of the stream in which they were captured: before those of prompts.
    side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # torch's

    def record(call: Call) -> Call:
        # Of several devices: what records waits for the current one, and empties its cache.
        with made_current(device):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(device)
            with torch.cuda.stream(side):
                for _ in range(N_CALLS_BEFORE):
                    call()
            torch.cuda.synchronize(device)
            # Threads that plan prompts use the device too, and must not spoil the recording.
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                outputs = call()

        def replay() -> Outputs:
            graph.replay()
            # The next replay writes these anew, perhaps before they were read.
            return tuple(output.clone() for output in outputs)

        return replay

    return record


def compiled_recorder(backend: str = "inductor") -> Recorder:
    """Compile each call for its shapes alone, by a backend of `torch.compile`."""
    # NOTE: by default a function is given up after eight shapes, and then runs as it stands.
    torch._dynamo.config.recompile_limit = 1 << 16

    def record(call: Call) -> Call:
        compiled: Call = torch.compile(call, dynamic=False, fullgraph=True, backend=backend)
        call()
        compiled()
        return compiled

    return record


def bucket_sizes(n_most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `n_most` itself: batches are padded to the next of these."""
    sizes = [1]
    while sizes[-1] * 2 < n_most:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes) if n_most == 1 else (*sizes, n_most)


def bucket_of(n: int, sizes: Sequence[int]) -> int:
    """The first size that holds `n`. Raises: `GraphError`."""
    for size in sizes:
        if size >= n:
            return size
    raise GraphError(f"a batch of {n} is over the largest bucket, {sizes[-1]}")


def upload_into(buffer: Tensor, values: Indices) -> None:
    """Write host numbers into a buffer on the device, after what is under way there."""
    host = torch.from_numpy(values)
    if buffer.is_cuda:
        # Pinned memory is not given away again before the copy is through.
        host = host.pin_memory()
    buffer.copy_(host, non_blocking=True)


def _identities(parts: Mapping[str, object]) -> dict[str, object]:
    return {name: _identity(part) for name, part in parts.items()}


def _identity(part: object) -> object:
    """What must stay: address, shape, strides and type of a tensor; else the object itself."""
    if isinstance(part, Tensor):
        return part.data_ptr(), tuple(part.shape), part.stride(), part.dtype
    return part


def _refuse_changes(what: str, parts: Mapping[str, object], known: Mapping[str, object]) -> None:
    for name, part in parts.items():
        now, then = _identity(part), known.get(name)
        if now is not then and (now != then if isinstance(part, Tensor) else True):
            raise GraphError(f"{name} is not the one that {what} was recorded with")


def _shown(key: Key) -> str:
    return " ".join(str(part) for part in key)

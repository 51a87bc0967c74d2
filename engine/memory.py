"""What a model takes of its device, planned before any of it is made.

Weights are there already. What each stream holds is known from the model's facts; what is left of
the budget becomes KV pages, as many as can ever be used. So the pool follows from the machine and
not from a setting, and a machine that is too small is found before the first stream, not under it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import nn

from engine.attention.depth import DepthKV
from engine.attention.flashinfer import static_prompt_rows, working_bytes
from engine.attention.kernels import wants_flashinfer
from engine.config import EngineConfig
from engine.errors import MemoryShortError
from engine.kv_pages import n_pages_for
from engine.sampler import Sampler
from engine.sizes import n_sequences, page_bytes, useful_pages
from engine.slot_state import SlotState
from engine.static_rows import static_batches
from models.base import SpeechModel
from models.layers.linear import PackedLinear
from models.limits import least_frames
from models.spec import ModelSpec

CPU_SHARE: Final = 0.25
"""Of the free memory of a CPU: others work on this machine too."""
CPU_MOST_BYTES: Final = 4 * 2**30
"""However much is free. A share that is asked for may be more."""
CUDA_SHARE: Final = 0.9
"""Of the free memory of a GPU; the rest is for what a step computes with."""
GRAPH_BYTES: Final = 512 * 2**20
"""Set aside for the memory of recorded steps on each device that has any: how much they take is
known when they have been recorded (`MemoryPlan.recorded`)."""
LEAST_PROMPT_ROWS: Final = 64
"""The engine starts if a stream of such a prompt and of the shortest speech fits its pool."""

FOR_PAGES: Final = (
    "lower --max-streams, give it more by --memory-fraction, or end what else runs there"
)
"""What helps where streams and pages do not fit the budget."""
FOR_WORK: Final = (
    "lower --max-streams, leave more room beside the KV pages by a lower --memory-fraction, run "
    "steps unrecorded by --no-graphs, or end what else runs there"
)
"""What helps where the budget fits, and computing does not."""
FOR_WEIGHTS: Final = (
    "take a --dtype of half precision or another --device, or end what else runs there"
)
"""What helps where not even the weights fit."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """Bytes of one model on one device.

    Args:
        device: where.
        weights_bytes: as loaded.
        state_bytes: what all slots hold for the rows of their streams.
        codec_bytes: what they hold for the detokenizer.
        attention_bytes: what its kernels work with.
        graph_bytes: set aside for recorded steps, or taken by them.
        pool_bytes: of all KV pages.
    """

    device: str
    weights_bytes: int = 0
    state_bytes: int = 0
    codec_bytes: int = 0
    attention_bytes: int = 0
    graph_bytes: int = 0
    pool_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """All but weights, which are there already, and pages, which take what is left."""
        return self.state_bytes + self.codec_bytes + self.attention_bytes + self.graph_bytes

    def line(self, pages: str) -> str:
        """All of it for people; parts that take nothing are left out."""
        parts = {
            "weights": self.weights_bytes,
            "streams": self.state_bytes,
            "codec state": self.codec_bytes,
            "attention": self.attention_bytes,
            "recorded steps": self.graph_bytes,
            pages: self.pool_bytes,
        }
        told = [f"{name} {shown(n_bytes)}" for name, n_bytes in parts.items() if n_bytes]
        return f"memory on {self.device}: {', '.join(told)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What one model takes.

    Args:
        name: of the model.
        lm: on the device of its LM.
        codec: on the detokenizer's device, where that is another.
        pinned_bytes: of the host's memory, for copies to a GPU.
        page_bytes: of a KV page.
        page_size: rows of a page.
        n_pages: of the pool, the dummy page included.
    """

    name: str
    lm: DeviceShare
    codec: DeviceShare | None
    pinned_bytes: int
    page_bytes: int
    page_size: int
    n_pages: int

    def lines(self) -> tuple[str, ...]:
        """A line for each device."""
        lines = [self.lm.line(f"{self.n_pages:,} KV pages")]
        if self.codec is not None:
            lines.append(self.codec.line(""))
        if self.pinned_bytes:
            lines.append(f"memory pinned on the host: {shown(self.pinned_bytes)}")
        return tuple(lines)

    def recorded(self, grown: Mapping[str, int]) -> MemoryPlan:
        """The same with what recorded steps took, by device, in place of what was set aside."""

        def known(share: DeviceShare) -> DeviceShare:
            n_bytes = grown.get(share.device, 0)
            if n_bytes > share.graph_bytes:
                logger.warning(
                    "recorded steps take %s of %s, and %s was set aside: if it runs out of "
                    "memory, %s",
                    *(shown(n_bytes), share.device, shown(share.graph_bytes), FOR_WORK),
                )
            return replace(share, graph_bytes=n_bytes)

        if not grown:
            return self
        codec = None if self.codec is None else known(self.codec)
        return replace(self, lm=known(self.lm), codec=codec)


def plan_memory(
    model: SpeechModel,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    detokenizer: SpeechModel | None = None,
    codec_device: torch.device | None = None,
) -> MemoryPlan:
    """Size the pool of one model.

    Args:
        model: loaded, on `device`.
        config: `n_pages` and `memory_bytes`, where set, stand.
        device: where streams will live.
        dtype: of keys and values.
        detokenizer: the copy of the model on `codec_device`, where that is another.
        codec_device: where chunks are detokenized; None: on `device`.

    Raises:
        MemoryShortError: not even one short stream would fit; it says what to lower.
    """
    spec = model.spec
    is_apart = codec_device is not None and codec_device != device
    state_bytes, codec_bytes = _slot_bytes(spec, config.max_streams, dtype)
    attention_bytes, pinned_bytes = _attention_bytes(spec, config, device, dtype)
    lm = DeviceShare(
        device=str(device),
        weights_bytes=weights_bytes(model),
        state_bytes=state_bytes,
        codec_bytes=0 if is_apart else codec_bytes,
        attention_bytes=attention_bytes,
        graph_bytes=_graph_bytes(config, device),
    )
    codec = None
    if is_apart and codec_device is not None:
        codec = DeviceShare(
            device=str(codec_device),
            weights_bytes=0 if detokenizer is None else weights_bytes(detokenizer),
            codec_bytes=codec_bytes,
            graph_bytes=_graph_bytes(config, codec_device),
        )
        _refuse_if_short(spec.name, codec, budget(config, codec_device))
    each_bytes = page_bytes(spec, config.page_size, dtype.itemsize)
    n_pages = config.n_pages or _fitting_pages(spec, config, lm, each_bytes, device)
    return MemoryPlan(
        name=spec.name,
        lm=replace(lm, pool_bytes=n_pages * each_bytes),
        codec=codec,
        pinned_bytes=pinned_bytes,
        page_bytes=each_bytes,
        page_size=config.page_size,
        n_pages=n_pages,
    )


def _fitting_pages(
    spec: ModelSpec, config: EngineConfig, lm: DeviceShare, each_bytes: int, device: torch.device
) -> int:
    budget_bytes = config.memory_bytes or budget(config, device)
    n_pages = min(useful_pages(spec, config), (budget_bytes - lm.fixed_bytes) // each_bytes)
    n_least = _least_pages(spec, config)
    if n_pages < n_least:
        raise MemoryShortError(
            f"{spec.name} does not fit: it may take {shown(budget_bytes)} of {device}, "
            f"{config.max_streams} streams take {shown(lm.fixed_bytes)} of it, and "
            f"KV pages for one need {shown(n_least * each_bytes)}; {FOR_PAGES}"
        )
    return n_pages


def _refuse_if_short(name: str, codec: DeviceShare, budget_bytes: int) -> None:
    if codec.fixed_bytes > budget_bytes:
        raise MemoryShortError(
            f"the detokenizer of {name} does not fit: it may take {shown(budget_bytes)} of "
            f"{codec.device}, and needs {shown(codec.fixed_bytes)}; {FOR_PAGES}"
        )


def _graph_bytes(config: EngineConfig, device: torch.device) -> int:
    is_recorded = config.graphs in ("auto", "cuda") and device.type == "cuda"
    return GRAPH_BYTES if is_recorded else 0


def _attention_bytes(
    spec: ModelSpec, config: EngineConfig, device: torch.device, dtype: torch.dtype
) -> tuple[int, int]:
    """Bytes that kernels of attention work with: on the device, and pinned on the host."""
    if not wants_flashinfer(config.attention, spec.backbone, device, dtype):
        return 0, 0
    is_recorded = _graph_bytes(config, device) > 0
    if not is_recorded:
        return working_bytes(spec.backbone, config.page_size, (), 0)
    sizes = static_batches(spec, config.max_streams)
    n_prompt_sizes = len(static_prompt_rows(spec.backbone, config.prefill_rows_per_step))
    return working_bytes(spec.backbone, config.page_size, sizes, n_prompt_sizes)


def budget(config: EngineConfig, device: torch.device) -> int:
    """Bytes that the engine may take of what is free now, with the weights in their place."""
    if device.type == "cuda":
        n_free, _ = torch.cuda.mem_get_info(device)
        return int(n_free * (config.memory_fraction or CUDA_SHARE))
    n_free = free_bytes()
    if config.memory_fraction is not None:
        return int(n_free * config.memory_fraction)
    return min(int(n_free * CPU_SHARE), CPU_MOST_BYTES)


def weights_bytes(model: SpeechModel) -> int:
    """Bytes of parameters, buffers and packed matrices; what is tied or a view counts once."""
    if not isinstance(model, nn.Module):
        return 0
    storages = {
        (storage.data_ptr(), storage.nbytes())
        for tensor in (*model.parameters(), *model.buffers())
        if (storage := tensor.untyped_storage()).nbytes()
    }
    packed = (module for module in model.modules() if isinstance(module, PackedLinear))
    n_packed = sum(one.in_features * one.out_features * one.dtype.itemsize for one in packed)
    return n_packed + sum(n_bytes for _, n_bytes in storages)


def free_bytes(root: Path = Path("/")) -> int:
    """Memory that this machine, or the container that we are in, has left.

    Args:
        root: of the file system; another in tests.

    Source: proc_meminfo(5), `MemAvailable`; the kernel's `cgroup-v2.rst`, memory controller.
    """
    of_machine, of_container = _of_machine(root), _of_container(root)
    return of_machine if of_container is None else min(of_machine, of_container)


@contextmanager
def telling_what_to_lower(what: str, advice: str = FOR_WORK) -> Iterator[None]:
    """Turn a failed allocation into a `MemoryShortError`; `what` was being done."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryShortError(f"{what}: the device is out of memory; {advice}") from error
    # The allocator of the CPU has no type of its own.
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryShortError(f"{what}: this machine is out of memory; {advice}") from error


def shown(n_bytes: int) -> str:
    """Bytes for people: `1.2 GB`, `37 MB`, `0.4 MB`."""
    if abs(n_bytes) >= 1e9:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.0f} MB" if abs(n_bytes) >= 1e7 else f"{n_bytes / 1e6:.1f} MB"


def _slot_bytes(spec: ModelSpec, n_slots: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that all slots hold: for rows, and for the detokenizer."""
    # Made for one stream and let go again: what is counted is what will be made. (Without memory,
    # on torch's `meta` device, it would cost 25 MB of imports.)
    cpu = torch.device("cpu")
    slots = SlotState(spec, 1, cpu)
    n_places = slots.rows.shape[0]
    codec_bytes = sum(tensor.nbytes for tensor in slots.codec.values())
    state_bytes = slots.n_bytes - codec_bytes + Sampler(spec, 1, cpu).n_bytes
    times = n_slots + n_places - 1
    depth_bytes = 0
    if spec.depth is not None:
        depth_bytes = DepthKV(spec.depth, 2, cpu, dtype).n_bytes * n_slots
    return state_bytes * times // n_places + depth_bytes, codec_bytes * times // n_places


def _least_pages(spec: ModelSpec, config: EngineConfig) -> int:
    n_rows = LEAST_PROMPT_ROWS + least_frames(spec) * spec.frame.rows_per_frame
    n_rows = min(n_rows, spec.backbone.max_positions)
    n_per_stream = n_sequences(spec, config) // config.max_streams
    return 1 + n_per_stream * n_pages_for(n_rows, config.page_size)


def _of_machine(root: Path) -> int:
    n_kib = _number_in(root / "proc/meminfo", "MemAvailable:")
    if n_kib is not None:
        return n_kib * 1024
    # No such file on other systems: half of what there is may be free.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_container(root: Path) -> int | None:
    """None: we are in none, or it is not limited."""
    folder = root / "sys/fs/cgroup"
    n_most, n_now = _number_in(folder / "memory.max"), _number_in(folder / "memory.current")
    if n_most is None or n_now is None:
        return None
    # Files that were read are counted as used, and given up when memory is wanted.
    n_files = _number_in(folder / "memory.stat", "inactive_file") or 0
    return max(0, n_most - n_now + n_files)


def _number_in(path: Path, name: str = "") -> int | None:
    """The number after `name`, or the first word; None where there is no file or no number."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    words = next((line for line in lines if line and name in ("", line[0])), ["none"])
    found = words[1 if name else 0]
    return int(found) if found.isdecimal() else None

"""Settings of the engine, checked when made. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import EngineConfigError
from models.spec import CodecSpec, FrameSpec

Policy = Literal["latency", "throughput"]
GraphChoice = Literal["auto", "cuda", "compile", "off"]
OverlapChoice = Literal["auto", "on", "off"]
AttentionChoice = Literal["auto", "flashinfer", "torch"]
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one engine is sized and how it schedules.

    Args:
        max_streams: slots: streams that can hold device state at once.
        max_batch_rows: LM rows of one step, prefill pieces included.
        prefill_rows_per_step: most prompt rows run in one step.
        startup_batch: most startup streams that run together while one waits for its first sound.
        page_size: KV positions in a page.
        n_pages: pages of the pool; 0 takes what memory allows, at most what `max_streams` streams
            of the model's longest fill.
        memory_fraction: share of the memory that is free once weights are loaded; None takes 0.9 of
            a GPU's, and a quarter of a CPU's but no more than 4 GiB.
        memory_bytes: what this engine may take instead, pages and state; 0: as `memory_fraction`.
        max_queue: streams that may wait for admission; more are refused at once.
        queue_timeout_s: longest wait for admission.
        lead_s: steady streams further ahead than this are left out of the plan.
        patience_s: a stream whose client has held it up for so long gives way to one that waits. A
            client that reads at the pace of sound holds up for less: from the gateway's high mark
            (2 s) to its low one (0.5 s).
        urgent_s: slack that a steady stream should keep: larger chunks are waited for only above
            it, nobody new is admitted while one has less, and no prompt is held back for longer.
        jitter_s: how late the machine may be at any time: chunks that are due within it wait for
            nothing, and calls shorter than it are not thought to hold anybody up.
        held_s: audio that the gateway may hold of what it was given: the rest of a packet (20 ms),
            the delays of coder and resampler (under 10 ms), and what the event loop is late.
        policy: `latency` keeps deadlines, `throughput` runs the largest batches.
        target_load: share of real time that admission lets the admitted streams use.
        attention: `flashinfer` for its kernels, `torch` for the reference; `auto` takes the kernels
            on an NVIDIA GPU where the package is installed and knows the model's shape.
        graphs: how steps are run: recorded as `cuda` graphs, by `compile` for fixed shapes, or
            `off`: as they stand. `auto` records where there is CUDA.
        overlap: results of a step are read when the next has been launched; `auto`: where the
            device works beside the host.
    """

    max_streams: int = 16
    max_batch_rows: int = 256
    prefill_rows_per_step: int = 128
    startup_batch: int = 4
    page_size: int = 16
    n_pages: int = 0
    memory_fraction: float | None = None
    memory_bytes: int = 0
    max_queue: int = 64
    queue_timeout_s: float = 10.0
    lead_s: float = 3.0
    patience_s: float = 2.0
    urgent_s: float = 0.3
    jitter_s: float = 0.15
    held_s: float = 0.045
    policy: Policy = "latency"
    target_load: float = 0.85
    attention: AttentionChoice = "auto"
    graphs: GraphChoice = "auto"
    overlap: OverlapChoice = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("max_streams", "max_batch_rows", "prefill_rows_per_step", "startup_batch"):
            if getattr(self, name) < 1:
                raise EngineConfigError(f"{name} is {getattr(self, name)}, must be 1 or more")
        if self.prefill_rows_per_step < 2 or self.max_batch_rows < 2:
            raise EngineConfigError("two rows must fit a step: a guided pair ends its prompts so")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise EngineConfigError(f"memory_fraction is {self.memory_fraction}, must be in (0, 1]")
        if self.memory_bytes < 0:
            raise EngineConfigError(f"memory_bytes is {self.memory_bytes}, must be 0 or more")
        if self.page_size < 1 or self.n_pages < 0 or self.max_queue < 0:
            raise EngineConfigError("page_size must be 1 or more, n_pages and max_queue 0 or more")
        if self.max_batch_rows < self.max_streams:
            raise EngineConfigError(
                f"max_batch_rows {self.max_batch_rows} is under max_streams {self.max_streams}"
            )
        if self.urgent_s < 0 or self.lead_s <= self.urgent_s:
            raise EngineConfigError(f"lead_s {self.lead_s} must be above urgent_s {self.urgent_s}")
        for name in ("jitter_s", "patience_s"):
            if getattr(self, name) < 0:
                raise EngineConfigError(f"{name} is {getattr(self, name)}, must be 0 or more")
        if not 0 < self.target_load <= 1:
            raise EngineConfigError(f"target_load is {self.target_load}, must be in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan must keep to: the engine's settings, and the pace and chunks of its model."""

    config: EngineConfig
    frame: FrameSpec
    codec: CodecSpec

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one frame."""
        return self.frame.frame_s

    @property
    def row_s(self) -> float:
        """Seconds of audio in one row: how long it may take in real time."""
        return self.frame.frame_s / self.frame.rows_per_frame

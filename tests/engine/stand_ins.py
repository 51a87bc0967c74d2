"""What stands for a card where there is none: doubles of FlashInfer and of CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine import graphs
from engine.attention import kernels
from engine.graphs import Call
from models.layers import fused
from tests.engine import flashinfer_double
from tests.engine.recorded_graphs import record


def recorder(call: Call) -> Call:
    """Record where nothing can be planned, and replay what was recorded and nothing else."""
    with flashinfer_double.capture():
        return record(call)


def put() -> None:
    """Let both stand in from now on."""
    kernels.stand_in(flashinfer_double)
    graphs.stand_in(recorder)


def take_away() -> None:
    """Take the real ones again."""
    kernels.stand_in(None)
    graphs.stand_in(None)
    fused.switch_on(None)


@contextmanager
def used() -> Iterator[None]:
    """Both stand in while the context lasts."""
    put()
    try:
        yield
    finally:
        take_away()

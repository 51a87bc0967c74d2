"""Where a part runs: on the GPU with FlashInfer; or, as a trial, on the CPU with a stand-in."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Final

import torch

from engine.attention import kernels
from engine.config import EngineConfig

DRY: Final = "--dry-run"
STAND_IN: Final = "tests.engine.flashinfer_double"
"""Computes what FlashInfer would, in torch, and refuses what it would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A device, what the LM is computed in, and how much of everything there is.

    Args:
        is_dry: small models, few streams.
    """

    is_dry: bool

    @property
    def device(self) -> torch.device:
        """Of models and streams."""
        return torch.device("cpu" if self.is_dry else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        """Of the LM and its keys and values."""
        return torch.bfloat16

    @property
    def max_streams(self) -> int:
        """Streams at once."""
        return 2 if self.is_dry else 64

    def config(self) -> EngineConfig:
        """Of the engine that is measured."""
        if self.is_dry:
            # On a slow machine nobody is refused for being late: the trial is of the script.
            return EngineConfig(
                max_streams=self.max_streams,
                max_batch_rows=16,
                prefill_rows_per_step=16,
                n_pages=64,
                queue_timeout_s=600.0,
                policy="throughput",
                attention="flashinfer",
            )
        return EngineConfig(max_streams=self.max_streams, max_queue=256, attention="flashinfer")


def parse(description: str | None, *names: str) -> tuple[Where, list[str]]:
    """The arguments of a part: `names`, and whether it is a trial."""
    parser = argparse.ArgumentParser(description=description)
    for name in names:
        parser.add_argument(name)
    parser.add_argument(DRY, dest="is_dry", action="store_true")
    asked = parser.parse_args()
    if asked.is_dry:
        torch.set_num_threads(1)
        kernels.stand_in(importlib.import_module(STAND_IN))
    return Where(is_dry=asked.is_dry), [getattr(asked, name) for name in names]

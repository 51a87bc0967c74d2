"""Where a part runs: on the GPU with FlashInfer; or, as a trial, on the CPU with a stand-in."""

from __future__ import annotations

import argparse
import importlib
import time
from dataclasses import dataclass, field
from typing import Final

import torch

from engine.config import EngineConfig

DRY: Final = "--dry-run"
STAND_INS: Final = "tests.engine.stand_ins"
"""They compute what FlashInfer and CUDA graphs would, in torch, and refuse what those would."""
SECONDS: Final = "--seconds"
SPARED_S: Final = 4.0
"""Of a part's time, for starting and for telling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A device, what the LM is computed in, and how much of everything there is.

    Args:
        is_dry: small models, few streams.
        budget_s: of the part, from `start_s` on.
    """

    is_dry: bool
    budget_s: float = float("inf")
    start_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Of the part's time."""
        return self.start_s + self.budget_s - SPARED_S - time.monotonic()

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
    parser.add_argument(SECONDS, type=float, default=float("inf"), help="of this part")
    asked = parser.parse_args()
    if asked.is_dry:
        torch.set_num_threads(1)
        importlib.import_module(STAND_INS).put()
    where = Where(is_dry=asked.is_dry, budget_s=asked.seconds)
    return where, [getattr(asked, name) for name in names]

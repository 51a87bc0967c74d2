"""Paths, seeds and small helpers that the stages of the recipe share."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

WORK = Path("training-work")
WEIGHTS = Path(__file__).parent.parent / "weights"
SEED = 20261129
SAMPLE_RATE_HZ = 22_050
HOP = 256
LATENT = 192
FRAMES_PER_STEP = 4
WINDOW = (-1, 0, 1, 2, 3)
STAY_CAP = 15
STAY_ENDED = 16
MAX_ADVANCE = 3
ADVANCE_END = 4
N_CODES = 1024
ABSENT = N_CODES
PAD_ID, BOS_ID, BOA_ID = 0, 1, 2

console = Console()


def progress() -> Progress:
    """Make the progress bar that every stage shows."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        refresh_per_second=1,
    )


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write `path` at once, so that a broken run leaves no half file."""
    partial = path.with_suffix(path.suffix + ".partial")
    with partial.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial.replace(path)


def save_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays at once (uncompressed: reading them is the inner loop)."""
    partial = path.with_suffix(".partial.npz")
    # The stub takes keyword arrays for its flag `allow_pickle`.
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def batches_of(items: list[int], size: int) -> Iterator[list[int]]:
    """Cut `items` into lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]

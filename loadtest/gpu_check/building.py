"""The GPU and its software, FlashInfer's kernels built, and how fast memory is.

python -m loadtest.gpu_check.building [--dry-run]
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from typing import Final

import torch

from engine.attention import make_pool
from loadtest.gpu_check.scripted import N_PAGES, N_SEQUENCES, PAGE_SIZE
from loadtest.gpu_check.shapes import SHAPES, Shape
from loadtest.gpu_check.telling import tell
from loadtest.gpu_check.timing import seconds_of
from loadtest.gpu_check.where import Where, parse

COPIED_BYTES: Final = 4 * 2**30
GB: Final = 1e9


def main() -> None:
    """Tell all of it."""
    where, _ = parse(__doc__)
    tell(card=_card(where), torch=torch.__version__, flashinfer=_version("flashinfer-python"))
    n_bytes = 2**20 if where.is_dry else COPIED_BYTES
    tell(copy_gb_per_s=round(copy_bytes_per_s(n_bytes, where) / GB, 1))
    # Side by side, as the kernels of each: nobody who is measured later waits for a compiler.
    shapes = {shape.head_dim: shape for shape in SHAPES.values()}
    with ThreadPoolExecutor(len(shapes)) as pool:
        list(pool.map(partial(_build, where), shapes.values()))


def _build(where: Where, shape: Shape) -> None:
    """All kernels of a head size."""
    start_s = time.monotonic()
    make_pool(
        shape.spec,
        "flashinfer",
        n_pages=N_PAGES,
        page_size=PAGE_SIZE,
        n_sequences=N_SEQUENCES,
        device=where.device,
        dtype=where.dtype,
    )
    tell(**{f"build_{shape.head_dim}_s": round(time.monotonic() - start_s, 1)})


def copy_bytes_per_s(n_bytes: int, where: Where) -> float:
    """Bytes read and written in a second by a copy of `n_bytes`."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=where.device)
    target = torch.empty_like(source)
    return 2 * n_bytes / seconds_of(lambda: target.copy_(source), where.device)


def _card(where: Where) -> dict[str, object]:
    if where.is_dry:
        return {"name": "none: a trial on the CPU"}
    of_card = torch.cuda.get_device_properties(where.device)
    return {
        "name": of_card.name,
        "memory_gb": round(of_card.total_memory / GB, 1),
        "capability": f"{of_card.major}.{of_card.minor}",
        "cuda": torch.version.cuda,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()

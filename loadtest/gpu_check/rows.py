"""Decoders of every family's shape on the GPU: FlashInfer and graphs against the CPU in float32.

    python -m loadtest.gpu_check.rows [--dry-run]

The same rows in half precision, on both backends, with steps that stand alone, that are planned by
bucket, and that are replayed: all must come near to what the CPU makes of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from engine.attention import make_pool
from engine.config import AttentionChoice
from engine.graphs import make_graphs
from loadtest.gpu_check.budget import Check, LeftOut, check_all
from loadtest.gpu_check.scripted import N_PAGES, N_SEQUENCES, PAGE_SIZE, How, run_script
from loadtest.gpu_check.shapes import SHAPES, Shape
from loadtest.gpu_check.where import Where, parse
from models.layers import fused
from models.layers.transformer import BlockStyle, Decoder, cast_decoders

CPU: Final = torch.device("cpu")
BACKENDS: Final[tuple[AttentionChoice, ...]] = ("torch", "flashinfer")
WAYS: Final[tuple[How, ...]] = ("plain", "static", "graph")
NEAR: Final = 0.08
"""Of hidden states near 1 after two layers in bfloat16, which keeps 8 bits."""
REPLAYED: Final = 0.05
"""Of a replayed row and the same row run plainly: kernels may add up in another order."""


def main() -> None:
    """Check all, tell each, and fail if one is not as it should be."""
    where, _ = parse(__doc__)
    check_all(checks_of(where), where)


def checks_of(where: Where) -> dict[str, Check]:
    """A check for each shape. A trial leaves out those that differ in numbers of heads alone."""
    checks: dict[str, Check] = {}
    by_code: dict[tuple[BlockStyle, float], str] = {}
    for name, shape in SHAPES.items():
        first = by_code.setdefault((shape.style, shape.turned), name)
        if where.is_dry and first != name:
            checks[name] = partial(_left_out, first)
        else:
            checks[name] = partial(check_rows, shape, where)
    return checks


def _left_out(other: str) -> dict[str, Any]:
    raise LeftOut(f"a CPU runs the same code for {other}")


def check_rows(shape: Shape, where: Where) -> dict[str, Any]:
    """Largest differences from the CPU by backend and way, and between replayed and plain steps."""
    exact = shape.decoder()
    expected = hidden_of(shape, exact, "torch", "plain", CPU, torch.float32)
    half = shape.decoder().to(where.device)
    cast_decoders(half, where.dtype)
    found: dict[str, float] = {}
    replayed = 0.0
    for backend in BACKENDS:
        by_way = {}
        for way in WAYS:
            hidden = hidden_of(shape, half, backend, way, where.device, where.dtype)
            by_way[way] = hidden.float().cpu()
            found[f"{backend}_{way}"] = difference(by_way[way], expected)
        replayed = max(replayed, difference(by_way["graph"], by_way["plain"]))
    is_right = max(found.values()) < NEAR and replayed < REPLAYED
    return {**found, "replayed_to_plain": replayed, "is_right": is_right}


@torch.inference_mode()
def hidden_of(
    shape: Shape,
    decoder: Decoder,
    backend: AttentionChoice,
    way: How,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Hidden states of all rows of the script."""
    fused.switch_on(None)
    attention = make_pool(
        shape.spec,
        backend,
        n_pages=N_PAGES,
        page_size=PAGE_SIZE,
        n_sequences=N_SEQUENCES,
        device=device,
        dtype=dtype,
    )
    graphs = make_graphs("cuda", device) if way == "graph" else None
    return run_script(decoder, attention, way, graphs)


def difference(one: Tensor, other: Tensor) -> float:
    """The largest of any number; infinite where one is not a number."""
    found = (one - other).abs().max().item()
    return round(found, 4) if found == found else float("inf")


if __name__ == "__main__":
    main()

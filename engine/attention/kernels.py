"""Finds FlashInfer's kernels, has them built, and says what is missing where they cannot be had.

They are built when they are first used (nvcc, ninja and a C++ compiler; minutes) and kept under
`~/.cache/flashinfer`. The package can be imported anywhere: its presence says nothing of a card.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from engine.attention.base import PADDING, AttentionBackend, Piece
from engine.config import AttentionChoice
from engine.device_streams import made_current
from engine.errors import EngineConfigError
from models.layers.fused import HALF, HEAD_DIMS
from models.spec import BackboneSpec

PACKAGE: Final = "flashinfer"
PLAIN_NORMS: Final = ("FLASHINFER_USE_CUDA_NORM", "1")
"""Of the environment when the package is imported: one module of norms, built by nvcc, for rows of
any width. Else each width is compiled when it first comes, under a stream. Source: FlashInfer
0.7.4, `norm/__init__.py`, `_use_cuda_norm`."""
TO_INSTALL: Final = "pip install 'parley[cuda]'"
OTHERWISE: Final = "or choose --attention torch"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _StandIn:
    kernels: Any = None


_stand_in = _StandIn()


def stand_in(kernels: Any) -> None:  # noqa: ANN401  an untyped module
    """Take this module for FlashInfer, on any device; None: the package again. For trials only."""
    _stand_in.kernels = kernels


def wants_flashinfer(
    choice: AttentionChoice, spec: BackboneSpec, device: torch.device, dtype: torch.dtype
) -> bool:
    """Whether the kernels are to be used: as told, or where they can be (`auto`).

    Raises:
        EngineConfigError: they are asked for where they cannot run.
    """
    if choice == "torch":
        return False
    fault = _fault(spec, device, dtype)
    if choice == "auto":
        return not fault
    if fault:
        raise EngineConfigError(f"--attention flashinfer {fault}")
    return True


def load_kernels() -> Any:  # noqa: ANN401  an untyped library
    """The module. Raises: `EngineConfigError`."""
    if _stand_in.kernels is not None:
        return _stand_in.kernels
    name, value = PLAIN_NORMS
    os.environ.setdefault(name, value)
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        message = f"FlashInfer cannot be imported ({error}): {TO_INSTALL}, {OTHERWISE}"
        raise EngineConfigError(message) from error


def build(
    attention: AttentionBackend,
    spec: BackboneSpec,
    kernels: Any,  # noqa: ANN401  an untyped library
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Use each kernel once, on padding, so that it is built before streams come.

    Raises:
        EngineConfigError: one cannot be built or run; it names the tools that are missing.
    """
    if not _cache().exists():
        logger.warning("FlashInfer's kernels are built, once for this machine: it takes minutes")
    n_heads = [spec.n_query_heads, spec.n_kv_heads, spec.n_kv_heads]
    rows = torch.zeros((2, sum(n_heads), spec.head_dim), device=device, dtype=dtype)

    def attend() -> None:
        none = np.array([PADDING, PADDING])
        attention.plan_decode(none, np.zeros_like(none))(0, *torch.split(rows, n_heads, dim=1))
        piece = Piece(sequence=PADDING, first_row=0, n_rows=len(rows), n_before=0)
        attention.plan_prefill([piece])(0, *torch.split(rows, n_heads, dim=1))

    uses = (attend, *_uses_of_layers(rows, kernels))
    try:
        if device.type == "cuda":
            # The threads have a stream of their own, which waits for nothing: not for these zeros.
            torch.cuda.synchronize(device)
        # Side by side: each compiles a module of its own, and all together take minutes.
        with ThreadPoolExecutor(len(uses)) as pool:
            for done in [pool.submit(_use_on, device, use) for use in uses]:
                done.result()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    # What a compiler, a linker or a driver does not like comes in many types.
    except Exception as error:
        raise _unbuilt(error) from error


def _use_on(device: torch.device, use: Callable[[], object]) -> None:
    """Call in a thread of one's own, where neither device nor mode are those of the caller."""
    with made_current(device), torch.inference_mode():
        use()


def _uses_of_layers(rows: torch.Tensor, kernels: Any) -> list[Callable[[], object]]:  # noqa: ANN401
    """Uses of the kernels of `models.layers`, on rows `(N, heads, head_dim)`: one a module."""
    n_rows, _, head_dim = rows.shape
    flat, weight = rows.flatten(1), torch.zeros_like(rows[0]).flatten()
    positions = torch.zeros(n_rows, dtype=torch.int64, device=rows.device)
    table = torch.zeros((1, head_dim), device=rows.device)

    def norm() -> None:
        kernels.rmsnorm(flat, weight, 1e-6)
        kernels.rmsnorm(rows, weight[:head_dim], 1e-6)
        kernels.fused_add_rmsnorm(flat.clone(), flat.clone(), weight, 1e-6)

    def rotary() -> None:
        turned = flat.clone()
        kernels.apply_rope_with_cos_sin_cache_inplace(
            positions, turned[:, :head_dim], turned[:, head_dim:], head_dim, table
        )

    return [norm, rotary, lambda: kernels.silu_and_mul(flat)]


def _unbuilt(error: Exception) -> EngineConfigError:
    lines = str(error).splitlines() or [type(error).__name__]
    lacking = _missing_tools()
    if lacking:
        what = f"{', '.join(lacking)} not found; install the CUDA toolkit, ninja and g++"
    else:
        what = "the log has all that the compiler said"
    logger.error("FlashInfer's kernels failed", exc_info=error)
    message = f"FlashInfer's kernels cannot be built or run ({lines[0][:200]}): {what}, {OTHERWISE}"
    return EngineConfigError(message)


def _fault(spec: BackboneSpec, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernels cannot be used here; empty if they can."""
    if _stand_in.kernels is not None:
        return ""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"needs an NVIDIA GPU, and this engine runs on {device.type}"
    if dtype not in HALF:
        return f"knows float16 and bfloat16, and this engine runs in {str(dtype).split('.')[-1]}"
    if spec.head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        return f"knows heads of {known} channels, and those of this model have {spec.head_dim}"
    if importlib.util.find_spec(PACKAGE) is None:
        return f"needs the package FlashInfer: {TO_INSTALL}"
    return ""


def _cache() -> Path:
    """Where built kernels are kept. Source: FlashInfer 0.7.4, `jit/env.py`."""
    base = os.environ.get("FLASHINFER_WORKSPACE_BASE")
    return (Path(base) if base else Path.home()) / ".cache" / "flashinfer"


def _missing_tools() -> list[str]:
    """Programs of the build that are not found."""
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    has_nvcc = shutil.which("nvcc") or (home / "bin" / "nvcc").is_file()
    lacking = [] if has_nvcc else ["nvcc"]
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is None:
        lacking.append("ninja")
    return lacking if shutil.which("g++") else [*lacking, "g++"]

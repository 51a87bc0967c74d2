"""Stage `export`: round to fp16 and write the shipped files (FORMAT.md)."""

import hashlib
import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.pico.training import codec
from models.pico.training.common import (
    FRAMES_PER_STEP,
    HOP,
    LATENT,
    SAMPLE_RATE_HZ,
    WEIGHTS,
    WINDOW,
    WORK,
    console,
)
from models.pico.training.lm import N_BOOKS, N_LAYERS, WIDTH
from models.pico.training.nets import PostNet, SpeechLM
from models.pico.training.teacher import vocoder_tensors
from models.pico.units import N_UNITS, UNITS
from models.pico.weights import write_manifest

# Chosen on the DEV sentences only (the sweep is in README.md).
ADVANCE_TEMPERATURE = 0.2
CODE_TEMPERATURES = (0.7, 0.7, 0.7)[:N_BOOKS]
# The 99.99th percentile of the teacher's stays is 9; its longest is 19.
MAX_STAY = 11
MOST_BYTES = 40_000_000


def _half(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    halves = {name: t.detach().to(torch.float16).contiguous() for name, t in tensors.items()}
    for name, tensor in halves.items():
        assert bool(torch.isfinite(tensor).all()), f"{name} does not fit fp16"
    return halves


def facts() -> dict[str, Any]:
    """Return lm.json without the hashes."""
    sizes = SpeechLM(vocab=N_UNITS, n_books=N_BOOKS, width=WIDTH, n_layers=N_LAYERS).sizes
    code = [{"temperature": t, "top_k": 0} for t in CODE_TEMPERATURES]
    return {
        **sizes,
        "max_stay": MAX_STAY,
        "window": list(WINDOW),
        "sampling": {"advance": {"temperature": ADVANCE_TEMPERATURE, "top_k": 0}, "codes": code},
        "post": {"width": PostNet.WIDTH, "unit_dim": PostNet.UNIT_DIM, "stay_dim": PostNet.STAY_DIM,
                 "dims": PostNet.DIMS, "kernel": 3, "dilation": list(PostNet.DILATION),
                 "ahead": list(PostNet.AHEAD)},
        "codec": {"frames": FRAMES_PER_STEP, "latent": LATENT, "dims": codec.DIMS},
        "vocoder": {"sample_rate": SAMPLE_RATE_HZ, "hop": HOP, "ups": [[8, 16], [8, 16], [4, 8]],
                    "res_kernels": [3, 5, 7], "res_dilations": [[1, 2], [2, 6], [3, 12]]},
    }  # fmt: skip


def run() -> None:
    """Write models/pico/weights from training-work."""
    constants = codec.load()
    parts = {
        "lm": torch.load(WORK / "lm.pt", weights_only=True),
        "post": torch.load(WORK / "post.pt", weights_only=True),
        "codec": {k: torch.from_numpy(constants[k]) for k in ("P", "mu", "Li", "zm")},
        "vocoder": {k: torch.from_numpy(np.array(v)) for k, v in vocoder_tensors().items()},
    }
    WEIGHTS.mkdir(exist_ok=True)
    described, total = facts(), 0
    described["sha256"] = {}
    for name, tensors in parts.items():
        path = WEIGHTS / f"{name}.safetensors"
        save_file(_half(tensors), path)
        path.chmod(0o644)
        total += path.stat().st_size
        described["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (WEIGHTS / "lm.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    vocab = json.dumps(list(UNITS), ensure_ascii=False)
    (WEIGHTS / "vocab.json").write_text(vocab + "\n", encoding="utf-8")
    console.print(f"weights: {total / 1e6:.2f} MB fp16")
    assert total <= MOST_BYTES, "the repository takes at most 40 MB of weights"
    write_manifest(WEIGHTS)

"""Loads a checkpoint of one form in a process of its own and prints what that took, in bytes.

Run as `python -m tests.models.loading FORM FOLDER`; `write` makes the files.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.checkpoint import read_safetensors, read_torch_file
from models.hugging_face import LlamaConfig, load_decoder, make_decoder
from models.layers.transformer import Decoder
from models.spec import BackboneSpec

PREFIX = "model."
CONFIG = LlamaConfig(
    backbone=BackboneSpec(
        n_layers=4, n_query_heads=16, n_kv_heads=4, head_dim=64, hidden=1024, max_positions=128
    ),
    inner=2048,
    n_ids=8,
    eps=1e-5,
    theta=1e4,
    scaling=None,
)
"""Joined and plain matrices in the proportions of published decoders; 143 MB in float32."""


def tensors(config: LlamaConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """As `transformers` names them; ones, for zeros would be holes in a file."""
    shape = config.backbone
    hidden, width = shape.hidden, shape.n_query_heads * shape.head_dim
    kv_width = shape.n_kv_heads * shape.head_dim
    sizes = {
        "self_attn.q_proj": (width, hidden),
        "self_attn.k_proj": (kv_width, hidden),
        "self_attn.v_proj": (kv_width, hidden),
        "self_attn.o_proj": (hidden, width),
        "mlp.gate_proj": (config.inner, hidden),
        "mlp.up_proj": (config.inner, hidden),
        "mlp.down_proj": (hidden, config.inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    made = {
        f"{PREFIX}layers.{n}.{name}.weight": torch.ones(size, dtype=dtype)
        for n in range(shape.n_layers)
        for name, size in sizes.items()
    }
    return {**made, f"{PREFIX}norm.weight": torch.ones(hidden, dtype=dtype)}


def write(folder: Path) -> None:
    """Checkpoints of all forms, and a small one to begin with."""
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        (folder / name).mkdir()
        save_file(tensors(CONFIG, dtype), folder / name / "model.safetensors")
    torch.save(tensors(CONFIG, torch.float32), folder / "model.pth")


def load(form: str, folder: Path) -> Decoder:
    """A decoder in float32, from one of the forms."""
    decoder = make_decoder(CONFIG)
    held = read_torch_file(folder / "model.pth") if form == "torch" else None
    load_decoder(decoder, held or read_safetensors(folder / form), PREFIX, source=form)
    return decoder


def main(form: str, folder: Path) -> None:
    """Print the size of the loaded model, and the peak of memory above what was there before."""
    if form == "write":
        write(folder)
        return
    # What torch needs once, however small the model, is not the loading's.
    make_decoder(replace(CONFIG, backbone=replace(CONFIG.backbone, n_layers=1), inner=1))
    before = _peak_bytes()
    loaded = load(form, folder).state_dict()
    peak = _peak_bytes() - before
    assert all(bool((part == 1).all()) for part in loaded.values()), "not as written"
    sys.stdout.write(f"{sum(part.nbytes for part in loaded.values())} {peak}\n")


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

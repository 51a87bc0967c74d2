"""`snac` 1.2.1: a small random checkpoint in its own layout, and what it decodes codes to."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from snac import SNAC

CONFIG = {
    "sampling_rate": 24000,
    "encoder_dim": 6,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 64,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 64,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}

folder = Path(sys.argv[1])
inputs = load_file(folder / "inputs.safetensors")
torch.set_num_threads(1)
torch.manual_seed(0)
model = SNAC(**CONFIG).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        # The library's own draws are so small that every layer but the last bias would not count.
        if name.endswith("original0"):
            parameter.mul_(1.2)
        elif name.endswith("bias"):
            parameter.normal_(std=0.05)
        elif name.endswith("alpha"):
            parameter.uniform_(0.5, 2.0)
torch.save(model.state_dict(), folder / "pytorch_model.bin")
(folder / "config.json").write_text(json.dumps(CONFIG))

noise = inputs["noise"]


def fixed_noise(shape, **_):
    """What the model under test takes for noise, in place of fresh draws."""
    n_rows, _, length = shape
    return noise[torch.arange(length) % len(noise)].expand(n_rows, 1, length)


torch.randn = fixed_noise
with torch.no_grad():
    pcm = model.decode([inputs["level0"], inputs["level1"], inputs["level2"]])
save_file({"pcm": pcm[:, 0].contiguous()}, folder / "outputs.safetensors")

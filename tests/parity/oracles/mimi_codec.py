"""`transformers` Mimi: a small random checkpoint in the hub's layout, decoded and encoded."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import MimiConfig, MimiModel

CONFIG = {
    "audio_channels": 1,
    "codebook_dim": 24,
    "codebook_size": 64,
    "compress": 2,
    "dilation_growth_rate": 2,
    "frame_rate": 12.5,
    "head_dim": 8,
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "norm_eps": 1e-05,
    "num_attention_heads": 4,
    "num_filters": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_quantizers": 8,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "rope_theta": 10000.0,
    "sampling_rate": 24000,
    # Far less than a test's length, so that the window's edge matters.
    "sliding_window": 11,
    "trim_right_ratio": 1.0,
    "upsample_groups": 32,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "vector_quantization_hidden_dimension": 24,
}


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Every weight and codebook drawn: the library leaves codebooks at zero."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("embed_sum"):
                tensor.normal_()
            elif name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith("layer_scale.scale"):
                tensor.uniform_(0.3, 0.6)
            elif name.endswith("conv.weight"):
                fan_in = tensor[0].numel() if tensor.dim() > 1 else 1
                tensor.normal_(std=1.0 / fan_in**0.5)
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = randomized(MimiModel(MimiConfig(**CONFIG)).eval())
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with torch.no_grad():
        outputs = {
            "pcm": model.decode(inputs["codes"].transpose(1, 2)).audio_values[:, 0],
            "codes": model.encode(inputs["pcm"].unsqueeze(1)).audio_codes.transpose(1, 2),
        }
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")

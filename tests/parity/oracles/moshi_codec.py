"""`moshi` 0.2.13: small random weights of Mimi in its own layout, decoded and encoded."""

import json
import sys
from pathlib import Path

import torch
from mimi_codec import CONFIG
from safetensors.torch import load_file, save_file
from stubs import stub_libraries

stub_libraries(["sentencepiece"])
from moshi.models.loaders import get_mimi  # noqa: E402

NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"
SHAPE = {
    "sample_rate": CONFIG["sampling_rate"],
    "channels": 1,
    "frame_rate": CONFIG["frame_rate"],
    "seanet": {
        "channels": 1,
        "dimension": CONFIG["hidden_size"],
        "causal": True,
        "n_filters": CONFIG["num_filters"],
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": CONFIG["compress"],
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": CONFIG["kernel_size"],
        "residual_kernel_size": CONFIG["residual_kernel_size"],
        "last_kernel_size": CONFIG["last_kernel_size"],
        "norm": "none",
        "pad_mode": "constant",
        "ratios": CONFIG["upsampling_ratios"],
        "true_skip": True,
    },
    "quantizer": {
        "dimension": CONFIG["codebook_dim"],
        "n_q": CONFIG["num_quantizers"],
        "bins": CONFIG["codebook_size"],
        "input_dimension": CONFIG["hidden_size"],
        "output_dimension": CONFIG["hidden_size"],
    },
    "transformer": {
        "d_model": CONFIG["hidden_size"],
        "num_heads": CONFIG["num_attention_heads"],
        "num_layers": CONFIG["num_hidden_layers"],
        "causal": True,
        "layer_scale": 0.01,
        "context": CONFIG["sliding_window"],
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": CONFIG["intermediate_size"],
        "input_dimension": CONFIG["hidden_size"],
        "output_dimensions": [CONFIG["hidden_size"]],
    },
}
OLDER = {
    "in_projs.0.weight": "in_proj_weight",
    "out_projs.0.weight": "out_proj.weight",
    "_codebook._initialized": "_codebook.inited",
    "_codebook.embedding_sum": "_codebook.embed_avg",
    "_codebook.cluster_usage": "_codebook.cluster_size",
}


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Every weight and codebook drawn: the library leaves codebooks at zero."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("embedding_sum"):
                tensor.normal_()
            elif name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith("_initialized"):
                tensor.fill_(1.0)
            elif name.endswith("scale"):
                tensor.uniform_(0.3, 0.6)
            elif name.endswith("norm1.weight"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith(("conv.weight", "convtr.weight")):
                tensor.normal_(std=1.0 / tensor[0].numel() ** 0.5)
            elif "proj" in name:
                tensor.normal_(std=0.5)
    return model


def older(name: str) -> str:
    """The name under which earlier files hold a tensor; this library still reads it."""
    for new, old in OLDER.items():
        name = name.replace(new, old)
    return name


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = randomized(get_mimi(None, SHAPE, num_codebooks=CONFIG["num_quantizers"]))
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, folder / NAME)
    renamed = {older(name): t for name, t in tensors.items()}
    (folder / "older").mkdir()
    save_file(renamed, folder / "older" / NAME)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    again = get_mimi(folder / "older" / NAME, SHAPE, num_codebooks=CONFIG["num_quantizers"])
    codes = inputs["codes"].transpose(1, 2)
    with torch.no_grad():
        outputs = {
            "pcm": model.decode(codes)[:, 0],
            "older": again.decode(codes)[:, 0],
            "codes": model.encode(inputs["pcm"].unsqueeze(1)).transpose(1, 2),
        }
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")

"""`transformers` X-Codec: a small random checkpoint in its layout, and what it decodes codes to."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import XcodecConfig, XcodecModel

SEMANTIC = {
    "model_type": "hubert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 3],
    "conv_stride": [160, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def make(folder: Path, *, is_normed: bool) -> XcodecModel:
    """The checkpoint; what the library leaves at zero or tiny is drawn, so that it counts."""
    torch.manual_seed(4)
    config = XcodecConfig(
        codebook_size=64,
        target_bandwidths=[0.3, 2.4],
        acoustic_model_config={
            "model_type": "dac",
            "encoder_hidden_size": 2,
            "downsampling_ratios": [8, 5, 4, 2],
            "decoder_hidden_size": 64,
            "upsampling_ratios": [8, 5, 4, 2],
            "hidden_size": 32,
        },
        semantic_model_config=SEMANTIC,
    )
    model = XcodecModel(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("codebook.embed") or name.startswith("fc2"):
                tensor.normal_(std=0.3)
            elif not name.startswith("acoustic_decoder."):
                continue
            elif name.endswith("alpha"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith("bias"):
                tensor.normal_(std=0.05)
            else:
                fan_in = tensor.shape[0] * 2 if "conv_t1" in name else tensor[0].numel()
                tensor.normal_(std=0.8 / fan_in**0.5)
        # Snakes lift the mean layer by layer: without it the last one gives signal, not a constant.
        last = model.acoustic_decoder.conv2.weight
        last.sub_(last.mean(dim=2, keepdim=True)).mul_(0.1)
    if is_normed:
        model.apply_weight_norm()
    folder.mkdir(exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    make(folder / "normed", is_normed=True)
    model = make(folder, is_normed=False)
    with torch.no_grad():
        pcm = model.decode(inputs["codes"].transpose(1, 2)).audio_values
    save_file({"pcm": pcm.reshape(len(pcm), -1).contiguous()}, folder / "outputs.safetensors")

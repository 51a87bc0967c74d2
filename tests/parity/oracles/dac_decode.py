"""`transformers` DAC: a small random checkpoint in its layout, and what it decodes codes to."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DacConfig, DacModel


def make(folder: Path) -> DacModel:
    """The checkpoint; the library's own draws are so small that most layers would not count."""
    torch.manual_seed(4)
    config = DacConfig(
        encoder_hidden_size=4,
        downsampling_ratios=[2, 4, 8, 8],
        decoder_hidden_size=64,
        upsampling_ratios=[8, 8, 4, 2],
        n_codebooks=9,
        codebook_size=64,
        codebook_dim=8,
        sampling_rate=44100,
    )
    model = DacModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("alpha"):
                parameter.uniform_(0.5, 2.0)
            elif name.endswith("bias"):
                parameter.normal_(std=0.05)
            elif parameter.dim() == 3 and not name.startswith("encoder."):
                fan_in = parameter.shape[1] * parameter.shape[2]
                if "conv_t1" in name:
                    fan_in = parameter.shape[0] * 2
                parameter.normal_(std=0.8 / fan_in**0.5)
        # Snakes lift the mean layer by layer: without it the last one gives signal, not a constant.
        last = model.decoder.conv2.weight
        last.sub_(last.mean(dim=2, keepdim=True))
    model.save_pretrained(folder)
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make(folder)
    with torch.no_grad():
        pcm = model.decode(audio_codes=inputs["codes"].transpose(1, 2)).audio_values
    save_file({"pcm": pcm.reshape(len(pcm), -1).contiguous()}, folder / "outputs.safetensors")

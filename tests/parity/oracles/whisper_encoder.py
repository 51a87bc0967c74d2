"""Whisper encoders with small random weights, and what they give.

`hugging_face`: `transformers`' own, and its layers behind causal convolutions, with attention by
blocks (composed here: no package has that). `openai`: the one of s3tokenizer's first version, with
lengths. `mel_<n>`: of `transformers`' feature extractor.
"""

import sys
from pathlib import Path

import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file
from torch.nn import functional

open_packages()
from s3tokenizer.model import AudioEncoder  # noqa: E402
from transformers import WhisperConfig, WhisperFeatureExtractor  # noqa: E402
from transformers.models.whisper.modeling_whisper import WhisperEncoder  # noqa: E402

N_MELS, HIDDEN, N_HEADS, N_LAYERS, MAX_ROWS = 12, 32, 4, 3, 40


def random_weights(module: torch.nn.Module) -> None:
    """Norms and biases that matter, too."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(std=0.3).add_(0.5)


def without_future(model: WhisperEncoder, mel: torch.Tensor, n_block: int) -> torch.Tensor:
    """Rows where convolutions look back alone, and attention to the end of its block."""
    x = mel
    for conv in (model.conv1, model.conv2):
        x = functional.pad(x, (2, 0))
        x = functional.gelu(functional.conv1d(x, conv.weight, conv.bias, stride=conv.stride))
    x = x.transpose(1, 2)
    n = x.shape[1]
    x = x + model.embed_positions.weight[:n]
    mask = torch.tril(torch.ones(n, n))
    for start in range(0, n, n_block):
        mask[start : start + n_block, start : start + n_block] = 1
    mask = torch.zeros(n, n).masked_fill(mask == 0, torch.finfo(torch.float32).min)
    for layer in model.layers:
        x = layer(x, mask[None, None])
    return x


folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
outputs = {}
with torch.no_grad():
    torch.manual_seed(3)
    config = WhisperConfig(
        num_mel_bins=N_MELS,
        d_model=HIDDEN,
        encoder_layers=N_LAYERS,
        encoder_attention_heads=N_HEADS,
        encoder_ffn_dim=2 * HIDDEN,
        max_source_positions=MAX_ROWS,
    )
    model = WhisperEncoder(config).eval()
    random_weights(model)
    model.embed_positions.weight.normal_(std=0.2)
    weights = model.state_dict()
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "hugging_face.safetensors")
    model.layer_norm = torch.nn.Identity()
    outputs["hugging_face"] = model(inputs["mel"]).last_hidden_state
    outputs["without_future"] = without_future(model, inputs["mel"], int(inputs["n_block"]))
    model.layers = model.layers[:-1]
    outputs["first_layers"] = model(inputs["mel"]).last_hidden_state

    other = AudioEncoder(N_MELS, MAX_ROWS, HIDDEN, N_HEADS, N_LAYERS, 1, False).eval()
    random_weights(other)
    weights = other.state_dict()
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "openai.safetensors")
    outputs["openai"], _ = other(inputs["mel"], inputs["n_frames"])

    for n_mels in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=n_mels)
        heard = extractor(
            inputs["pcm"].numpy(), sampling_rate=16_000, padding="longest", return_tensors="pt"
        )
        outputs[f"mel_{n_mels}"] = heard.input_features[0]
save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")

"""GLM-4-Voice's speech tokenizer, composed: a small random one in its layout, and its tokens.

Layers and features are those of `transformers`; the causal convolutions, the mask by blocks, the
pooling and the nearest code are written out as zai-org/GLM-4-Voice, `modeling_whisper.py`, has
them. Without inputs it makes the folder; with `pcm<n>` it gives `tokens<n>`.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

N_LAYERS, N_CODES, N_POOLED, BLOCK, N_MELS = 2, 64, 4, 12, 128
CONFIG = WhisperConfig(
    d_model=32,
    encoder_attention_heads=2,
    encoder_ffn_dim=48,
    encoder_layers=5,
    num_mel_bins=N_MELS,
    max_source_positions=1500,
    attn_implementation="eager",
)
STATED = {
    "architectures": ["WhisperVQEncoder"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": CONFIG.d_model,
    "encoder_attention_heads": CONFIG.encoder_attention_heads,
    "encoder_causal_attention": False,
    "encoder_causal_convolution": True,
    "encoder_ffn_dim": CONFIG.encoder_ffn_dim,
    "encoder_layers": CONFIG.encoder_layers,
    "max_source_positions": CONFIG.max_source_positions,
    "num_mel_bins": N_MELS,
    "pooling_kernel_size": N_POOLED,
    "pooling_position": N_LAYERS,
    "pooling_type": "avg",
    "quantize_causal_block_size": BLOCK,
    "quantize_causal_encoder": False,
    "quantize_encoder_only": True,
    "quantize_position": N_LAYERS,
    "quantize_vocab_size": N_CODES,
    "scale_embedding": False,
}


class Encoder(torch.nn.Module):
    """The part of the encoder that is run."""

    def __init__(self) -> None:
        super().__init__()
        size = CONFIG.d_model
        self.conv1 = torch.nn.Conv1d(N_MELS, size, 3)
        self.conv2 = torch.nn.Conv1d(size, size, 3, stride=2)
        self.embed_positions = torch.nn.Embedding(CONFIG.max_source_positions, size)
        self.layers = torch.nn.ModuleList(WhisperEncoderLayer(CONFIG) for _ in range(N_LAYERS))
        self.codebook = torch.nn.Embedding(N_CODES, size)
        self.embed_positions2 = torch.nn.Embedding(CONFIG.max_source_positions // N_POOLED, size)
        self.register_buffer("ema_count", torch.ones(N_CODES))
        self.register_buffer("ema_weight", torch.ones(N_CODES, size))

    def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = features
        for conv in (self.conv1, self.conv2):
            x = torch.nn.functional.gelu(conv(torch.nn.functional.pad(x, (2, 0))))
        x = x.transpose(1, 2)
        n = x.shape[1]
        x = x + self.embed_positions.weight[:n]
        seen = torch.tril(torch.ones(n, n, dtype=torch.bool))
        squares = [torch.ones(min(BLOCK, n - at), min(BLOCK, n - at)) for at in range(0, n, BLOCK)]
        seen = (seen | torch.block_diag(*squares).bool()) & mask[:, ::2].bool()[:, None]
        bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        for layer in self.layers:
            out = layer(x, bias.unsqueeze(1))
            x = out[0] if isinstance(out, tuple) else out
        return torch.nn.functional.avg_pool1d(x.transpose(1, 2), N_POOLED).transpose(1, 2)


def make() -> Encoder:
    """Every weight drawn; codes lie where rows fall, so that many of them occur."""
    torch.manual_seed(4)
    encoder = Encoder().eval()
    with torch.no_grad():
        for name, tensor in encoder.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(std=0.1)
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(std=1.0 / math.sqrt(tensor[0].numel()))
        # Rows of a sound that is now loud and now soft, now high and now low.
        n, part = N_CODES * 1280, 640
        pitch, loudness = torch.rand(2, n // part).repeat_interleave(part, dim=1)
        wave = (pitch.mul(0.4).cumsum(0) * torch.pi).sin() + 0.1 * torch.randn(n)
        features = _extract(wave * 10 ** (-2 * loudness))
        encoder.codebook.weight.copy_(encoder(features.input_features, features.attention_mask)[0])
    return encoder


def _extract(pcm: torch.Tensor) -> dict[str, torch.Tensor]:
    """Features of PCM `(n,)`, padded to whole tokens."""
    extract = WhisperFeatureExtractor(feature_size=N_MELS)
    return extract(
        pcm.numpy(),
        sampling_rate=16_000,
        return_attention_mask=True,
        return_tensors="pt",
        padding="longest",
        pad_to_multiple_of=160 * 2 * N_POOLED,
    )


@torch.no_grad()
def tokens_of(encoder: Encoder, pcm: torch.Tensor) -> torch.Tensor:
    """Tokens of PCM `(n,)` at 16 kHz, in pieces of 30 s, each by itself."""
    found = []
    for piece in pcm.split(30 * 16_000):
        features = _extract(piece)
        mask = features.attention_mask
        rows = encoder(features.input_features, mask)
        tokens = torch.cdist(rows, encoder.codebook.weight[None]).argmin(dim=2)
        found.append(tokens[mask[:, ::2][:, ::N_POOLED].bool()])
    return torch.cat(found)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    encoder = make()
    if not inputs:
        (folder / "config.json").write_text(json.dumps(STATED))
        save_file(encoder.state_dict(), folder / "model.safetensors")
    for name, pcm in inputs.items():
        outputs[name.replace("pcm", "tokens")] = tokens_of(encoder, pcm)
    save_file(outputs, folder / "outputs.safetensors")

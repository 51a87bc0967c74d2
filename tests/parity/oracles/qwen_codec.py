"""`qwen-tts` 0.1.1: a small random codec checkpoint in its own layout, and what it decodes to."""

import json
import sys
from pathlib import Path

import torch
from qwen_stubs import stub_sound_libraries
from safetensors.torch import load_file, save_file

stub_sound_libraries()
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import (  # noqa: E402
    Qwen3TTSTokenizerV2Config,
)
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import (  # noqa: E402
    Qwen3TTSTokenizerV2Model,
)

CONFIG = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "encoder_valid_num_quantizers": 8,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "decoder_config": {
        "attention_bias": False,
        "codebook_dim": 32,
        "codebook_size": 64,
        "decoder_dim": 64,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 24,
        "intermediate_size": 48,
        "latent_dim": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "num_quantizers": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        # Far less than a test's length, so that the window's edge matters.
        "sliding_window": 9,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    },
    "encoder_config": {
        "hidden_size": 16,
        "num_filters": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 16,
        "codebook_size": 64,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_quantizers": 8,
        "upsample_groups": 16,
    },
}


def make(folder: Path) -> Qwen3TTSTokenizerV2Model:
    """The checkpoint: every weight and codebook drawn, for the library leaves some at zero."""
    torch.manual_seed(6)
    model = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**CONFIG)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("embedding_sum"):
                tensor.normal_()
            elif name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith(("layer_scale.scale", "gamma")):
                tensor.uniform_(0.3, 0.6)
            elif name.endswith(("alpha", "beta")):
                tensor.normal_(std=0.2)
            elif name.startswith("decoder.") and tensor.dim() == 3:
                fan_in = tensor.shape[1] * tensor.shape[2]
                tensor.normal_(std=1.0 / fan_in**0.5)
        for name, tensor in model.encoder.named_buffers():
            if name.endswith("embed_sum"):
                tensor.normal_()
            elif name.endswith("cluster_usage"):
                tensor.uniform_(0.5, 2.0)
    folder.mkdir(exist_ok=True)
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    # Published files state all of the encoder's numbers.
    stated = {**CONFIG, "encoder_config": model.config.encoder_config.to_dict()}
    (folder / "config.json").write_text(json.dumps(stated))
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make(folder)
    with torch.no_grad():
        pcm = model.decoder(inputs["codes"].transpose(1, 2))[:, 0]
    save_file({"pcm": pcm.contiguous()}, folder / "outputs.safetensors")

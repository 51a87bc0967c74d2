"""Step-Audio 2 mini as `loadtest.bench.published` makes other families."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from loadtest.bench.random_weights import draw, random_model, save_tokenizer
from models.codecs.dit import Dit
from models.codecs.hift import Hift
from models.codecs.speech_flow import SpeechFlow
from models.step_audio2.vocoder import HIFT, read_vocoder_config

WIDTH, INNER, N_IDS, N_TEXT_IDS, N_CODES = 3584, 18_944, 158_720, 151_688, 6561
HEARD: Final = {
    "n_mels": 128,
    "n_audio_ctx": 1500,
    "n_audio_state": 1280,
    "n_audio_head": 20,
    # Not heard here: as small as it can be.
    "n_audio_layer": 1,
    "llm_dim": WIDTH,
    "kernel_size": 3,
    "adapter_stride": 2,
}
QWEN2: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": N_IDS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 16_384,
}
MARKS: Final = (
    "<audio_start>",
    "<audio_end>",
    "<audio_patch>",
    "<|BOT|>",
    "<|EOT|>",
    "<tts_start>",
    "<tts_end>",
    "<tts_pad>",
    *(f"<audio_{n}>" for n in range(N_CODES + 1)),
)
YAML: Final = """
flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec
  input_size: 512
  output_size: 80
  spk_embed_dim: 192
  output_type: mel
  vocab_size: 6561
  encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2
    input_size: 512
    output_size: 512
    input_layer: linear
    pre_lookahead_len: 3
    num_blocks: 6
    num_up_blocks: 4
    up_stride: 2
    up_scale_factor: 2
    attention_heads: 8
    linear_units: 2048
  decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM
    inference_cfg_rate: 0.7
    estimator: !new:cosyvoice2.flow.decoder_dit.DiT
      in_channels: 320
      out_channels: 80
      mlp_ratio: 4.0
      depth: 16
      num_heads: 8
      head_dim: 64
      hidden_size: 512
"""


def make_step_audio2(folder: Path, n_layers: int) -> None:
    """Qwen2-7B with its whole vocabulary, and token2wav; what hears is as small as in the tests."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.models.audio.tiny import write_camplus_onnx, write_speech_tokenizer_onnx

    unused = (f"<unused_{n}>" for n in range(N_TEXT_IDS - 256))
    save_tokenizer(folder, [*unused, *MARKS])
    shape = {**QWEN2, "num_hidden_layers": n_layers}
    stated = {
        "model_type": "step_audio_2",
        "text_config": {**shape, "num_attention_groups": QWEN2["num_key_value_heads"]},
        "audio_encoder_config": HEARD,
    }
    (folder / "config.json").write_text(json.dumps(stated))
    model = random_model(lambda: Qwen2ForCausalLM(Qwen2Config(**shape)))
    weights = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    save_file({**weights, **_hearing()}, folder / "model.safetensors")
    place = folder / "token2wav"
    place.mkdir()
    (place / "flow.yaml").write_text(YAML)
    config = read_vocoder_config(place)
    flow = random_model(lambda: SpeechFlow(config.flow, Dit(config.estimator)))
    torch.save(flow.state_dict(), place / "flow.pt")
    torch.save(random_model(lambda: Hift(HIFT)).state_dict(), place / "hift.pt")
    write_speech_tokenizer_onnx(place / "speech_tokenizer_v2_25hz.onnx")
    write_camplus_onnx(place / "campplus.onnx")
    _write_voice(folder / "assets" / "default_female.wav")


def _hearing() -> dict[str, Tensor]:
    """Tensors of encoder and adapter. No library has them all: their keys are written out here."""
    size, inner = 1280, 2048
    weights = {
        "encoder.conv1.weight": draw(size, 128, 3),
        "encoder.conv2.weight": draw(size, size, 3),
        "encoder.positional_embedding.weight": draw(1500, size),
        "adapter.conv.weight": draw(size, size, 3),
        "adapter.linear1.weight": draw(inner, size),
        "adapter.linear1.bias": draw(inner),
        "adapter.linear2.weight": draw(WIDTH, inner),
        "adapter.linear2.bias": draw(WIDTH),
    }
    stem = "encoder.blocks.0."
    for name in ("encoder.after_norm", f"{stem}attn_ln", f"{stem}mlp_ln"):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(size), torch.zeros(size)
    for name in ("encoder.conv1", "encoder.conv2", "adapter.conv"):
        weights[f"{name}.bias"] = draw(size)
    for name in ("query", "key", "value", "out"):
        weights[f"{stem}attn.{name}.weight"] = draw(size, size)
        if name != "key":
            weights[f"{stem}attn.{name}.bias"] = draw(size)
    for name, n_out, n_in in (("mlp.0", 4 * size, size), ("mlp.2", size, 4 * size)):
        weights[f"{stem}{name}.weight"] = draw(n_out, n_in)
        weights[f"{stem}{name}.bias"] = draw(n_out)
    return weights


def _write_voice(path: Path) -> None:
    """A second of noise."""
    path.parent.mkdir()
    pcm = (0.2 * torch.randn(24_000)).clamp(-1, 1).mul(32_767).to(torch.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(pcm.numpy().tobytes())

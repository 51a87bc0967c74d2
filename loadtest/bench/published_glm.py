"""GLM-4-Voice as `loadtest.bench.published` makes other families."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from loadtest.bench.random_weights import draw, random_model
from models.audio.whisper_encoder import WhisperEncoder
from models.codecs.block_flow import BlockFlow
from models.codecs.hift import Hift
from models.glm4_voice.config import DECODER_FOLDER, FIRST_CODE, HEARING_FOLDER
from models.glm4_voice.decoder import read_decoder_config
from models.glm4_voice.hearing import read_hearing_config

WIDTH, INNER, N_HEADS, N_KV, HEAD_DIM = 4096, 13_696, 32, 2, 128
N_IDS, N_TEXT, FIRST, N_CODES = 168_960, 151_329, 152_353, 16_384
ENDS: Final = [151_329, 151_336, 151_338]
MARKS: Final = {
    151_331: "[gMASK]",
    151_333: "<sop>",
    151_335: "<|system|>",
    151_336: "<|user|>",
    151_337: "<|assistant|>",
    151_343: "<|begin_of_audio|>",
    151_344: "<|end_of_audio|>",
    151_329: "<|endoftext|>",
}
CHATGLM: Final[dict[str, Any]] = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "eos_token_id": ENDS,
    "ffn_hidden_size": INNER,
    "hidden_size": WIDTH,
    "kv_channels": HEAD_DIM,
    "layernorm_epsilon": 3.90625e-08,
    "multi_query_attention": True,
    "multi_query_group_num": N_KV,
    "num_attention_heads": N_HEADS,
    "original_rope": True,
    "padded_vocab_size": N_IDS,
    "post_layer_norm": True,
    "rmsnorm": True,
    "rope_ratio": 1,
    "seq_length": 8192,
    "tie_word_embeddings": False,
}
HEARD: Final = {
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_causal_convolution": True,
    "encoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "num_mel_bins": 128,
    "pooling_kernel_size": 4,
    "pooling_type": "avg",
    "quantize_causal_block_size": 200,
    "quantize_vocab_size": N_CODES,
    # Not heard here: as small as it can be.
    "pooling_position": 1,
    "quantize_position": 1,
}
# Of the twelve blocks at the bottom of the estimator two: a call takes a minute of a CPU with all.
YAML: Final = """
flow: !new:cosyvoice.flow.flow.MaskedDiffWithXvec
    input_size: 512
    output_size: 80
    spk_embed_dim: 192
    vocab_size: 16384
    input_frame_rate: 12.5
    encoder: !new:cosyvoice.transformer.encoder.BlockConformerEncoder
        {input_size: 512, output_size: 512, attention_heads: 8, linear_units: 2048, num_blocks: 6,
         input_layer: linear, pos_enc_layer_type: rel_pos_espnet, block_size: 10,
         selfattention_layer_type: block_rel_selfattn}
    length_regulator: !new:cosyvoice.flow.length_regulator.InterpolateRegulator
        {channels: 80, sampling_ratios: [1, 1, 1, 1]}
    decoder: !new:cosyvoice.flow.flow_matching.ConditionalCFM
        cfm_params: {content: {solver: euler, t_scheduler: cosine, inference_cfg_rate: 0.7}}
        estimator: !new:cosyvoice.flow.decoder.ConditionalDecoder
            {in_channels: 320, out_channels: 80, channels: [256, 256], attention_head_dim: 64,
             n_blocks: 4, num_mid_blocks: 2, num_heads: 8, act_fn: gelu}
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: 80
    base_channels: 512
    nb_harmonics: 8
    sampling_rate: 22050
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 8]
    upsample_kernel_sizes: [16, 16]
    istft_params: {n_fft: 16, hop_len: 4}
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        {num_class: 1, in_channels: 80, cond_channels: 512}
"""
_WHISPER_NAMES: Final = {
    "positions": "embed_positions.weight",
    "attention_norm": "self_attn_layer_norm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}


def make_glm4_voice(folder: Path, n_layers: int) -> None:
    """GLM-4-Voice-9B; what hears is as small as it can be."""
    (folder / "config.json").write_text(json.dumps({**CHATGLM, "num_layers": n_layers}))
    _write_tokenizer(folder)
    save_file(_lm(n_layers), folder / "model.safetensors")
    hearing, decoder = folder / HEARING_FOLDER, folder / DECODER_FOLDER
    hearing.mkdir()
    (hearing / "config.json").write_text(json.dumps(HEARD))
    save_file(_hearing(hearing), hearing / "model.safetensors")
    decoder.mkdir()
    (decoder / "config.yaml").write_text(YAML)
    flow, hift = read_decoder_config(decoder)
    torch.save(_state(random_model(lambda: BlockFlow(flow))), decoder / "flow.pt")
    torch.save(_state(random_model(lambda: Hift(hift))), decoder / "hift.pt")


def _write_tokenizer(folder: Path) -> None:
    """All ids of text: bytes, and pairs and triples of them."""
    tokens = [bytes([one]) for one in range(256)]
    tokens += [bytes(pair) for pair in ((a, b) for a in range(256) for b in range(256))]
    n_left = N_TEXT - len(tokens)
    tokens += [bytes((n >> 16, n >> 8 & 255, n & 255)) for n in range(n_left)]
    lines = [f"{base64.b64encode(one).decode()} {rank}\n" for rank, one in enumerate(tokens)]
    (folder / "tokenizer.model").write_text("".join(lines))
    codes = {FIRST + n: FIRST_CODE.replace("0", str(n)) for n in range(N_CODES)}
    added = {str(idx): {"content": content} for idx, content in (MARKS | codes).items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def _lm(n_layers: int) -> dict[str, Tensor]:
    """No library has it under these keys: they are written out here."""
    n_rows = (N_HEADS + 2 * N_KV) * HEAD_DIM
    stem = "transformer.encoder"
    weights = {
        "transformer.embedding.word_embeddings.weight": draw(N_IDS, WIDTH),
        "transformer.output_layer.weight": draw(N_IDS, WIDTH),
        f"{stem}.final_layernorm.weight": torch.ones(WIDTH),
    }
    for idx in range(n_layers):
        layer = f"{stem}.layers.{idx}."
        weights |= {
            f"{layer}input_layernorm.weight": torch.ones(WIDTH),
            f"{layer}self_attention.query_key_value.weight": draw(n_rows, WIDTH),
            f"{layer}self_attention.query_key_value.bias": draw(n_rows),
            f"{layer}self_attention.dense.weight": draw(WIDTH, N_HEADS * HEAD_DIM),
            f"{layer}post_attention_layernorm.weight": torch.ones(WIDTH),
            f"{layer}mlp.dense_h_to_4h.weight": draw(2 * INNER, WIDTH),
            f"{layer}mlp.dense_4h_to_h.weight": draw(WIDTH, INNER),
        }
    return weights


def _hearing(folder: Path) -> dict[str, Tensor]:
    config = read_hearing_config(folder)
    own = _state(random_model(lambda: WhisperEncoder(config.encoder)))
    spelled = {
        ".".join(_WHISPER_NAMES.get(part, part) for part in key.split(".")): one
        for key, one in own.items()
    }
    return {**spelled, "codebook.weight": draw(N_CODES, config.encoder.hidden)}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.contiguous() for key, tensor in model.state_dict().items()}

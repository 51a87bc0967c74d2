"""CosyVoice 2 as `loadtest.bench.published` makes other families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from loadtest.bench.random_weights import draw, random_model, save_tokenizer
from models.codecs.hift import Hift
from models.codecs.speech_flow import SpeechFlow
from models.codecs.unet import Unet
from models.cosyvoice2.vocoder import vocoder_config
from models.hyperpyyaml import read_hyperpyyaml

WIDTH, INNER, N_KV, HEAD_DIM = 896, 4864, 2, 64
N_TEXT_IDS, N_DRAWN = 151_936, 6564
QWEN2: Final[dict[str, Any]] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": 32_768,
    "num_attention_heads": WIDTH // HEAD_DIM,
    "num_key_value_heads": N_KV,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": N_TEXT_IDS,
}
YAML: Final = """
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: 896
    llm_output_size: 896
    speech_token_size: 6561
    mix_ratio: [5, 15]
    sampling: !name:cosyvoice.utils.common.ras_sampling
        {top_p: 0.8, top_k: 25, win_size: 10, tau_r: 0.1}
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: 512
    output_size: 80
    spk_embed_dim: 192
    vocab_size: 6561
    token_mel_ratio: 2
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: 512
        attention_heads: 8
        linear_units: 2048
        num_blocks: 6
        input_size: 512
        input_layer: linear
        pos_enc_layer_type: rel_pos_espnet
        static_chunk_size: 25
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: {solver: euler, t_scheduler: cosine, inference_cfg_rate: 0.7}
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: 320
            out_channels: 80
            channels: [256]
            attention_head_dim: 64
            n_blocks: 4
            num_mid_blocks: 12
            num_heads: 8
            act_fn: gelu
            static_chunk_size: 50
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: 80
    base_channels: 512
    nb_harmonics: 8
    sampling_rate: 24000
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params: {n_fft: 16, hop_len: 4}
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: 80
        cond_channels: 512
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1920
    num_mels: 80
    sampling_rate: 24000
    hop_size: 480
    win_size: 1920
    fmin: 0
    fmax: 8000
    center: False
"""


def make_cosyvoice2(folder: Path, n_layers: int) -> None:
    """CosyVoice2-0.5B, with a voice; what hears recordings is as small as in the tests."""
    from tests.models.audio.tiny import write_camplus_onnx, write_speech_tokenizer_onnx

    text = folder / "CosyVoice-BlankEN"
    text.mkdir()
    (text / "config.json").write_text(json.dumps({**QWEN2, "num_hidden_layers": n_layers}))
    save_tokenizer(text, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    (folder / "cosyvoice2.yaml").write_text(YAML)
    torch.save(_llm(n_layers), folder / "llm.pt")
    config = vocoder_config(read_hyperpyyaml(folder / "cosyvoice2.yaml"))
    flow = random_model(lambda: SpeechFlow(config.flow, Unet(config.unet)))
    torch.save(flow.state_dict(), folder / "flow.pt")
    torch.save(random_model(lambda: Hift(config.hift)).state_dict(), folder / "hift.pt")
    torch.save({"voice": {"embedding": draw(1, 192)}}, folder / "spk2info.pt")
    write_speech_tokenizer_onnx(folder / "speech_tokenizer_v2.onnx")
    write_camplus_onnx(folder / "campplus.onnx")


def _llm(n_layers: int) -> dict[str, Tensor]:
    """Tensors of `llm.pt`. No library has them all: their keys are written out here."""
    stem = "llm.model.model."
    weights = {
        f"{stem}embed_tokens.weight": draw(N_TEXT_IDS, WIDTH),
        f"{stem}norm.weight": torch.ones(WIDTH),
        "llm_embedding.weight": draw(2, WIDTH),
        "speech_embedding.weight": draw(N_DRAWN, WIDTH),
        "llm_decoder.weight": draw(N_DRAWN, WIDTH),
        "llm_decoder.bias": draw(N_DRAWN),
    }
    for idx in range(n_layers):
        layer = f"{stem}layers.{idx}."
        for name, n_rows in (("q", WIDTH), ("k", N_KV * HEAD_DIM), ("v", N_KV * HEAD_DIM)):
            weights[f"{layer}self_attn.{name}_proj.weight"] = draw(n_rows, WIDTH)
            weights[f"{layer}self_attn.{name}_proj.bias"] = draw(n_rows)
        weights[f"{layer}self_attn.o_proj.weight"] = draw(WIDTH, WIDTH)
        weights[f"{layer}mlp.gate_proj.weight"] = draw(INNER, WIDTH)
        weights[f"{layer}mlp.up_proj.weight"] = draw(INNER, WIDTH)
        weights[f"{layer}mlp.down_proj.weight"] = draw(WIDTH, INNER)
        weights[f"{layer}input_layernorm.weight"] = torch.ones(WIDTH)
        weights[f"{layer}post_attention_layernorm.weight"] = torch.ones(WIDTH)
    return weights

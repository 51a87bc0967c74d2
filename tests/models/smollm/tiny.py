"""A tiny random checkpoint in the form of the GGUF file, and the model that it came from."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from models.smollm.config import N_CONTROL_IDS, SmolConfig
from models.smollm.model import Precision, SmolModel
from models.smollm.tokenizer import SmolTokenizer
from models.smollm.weights import Encoding, Rows, arrange
from models.text.byte_letters import BYTE_OF_LETTER

CONFIG = SmolConfig(
    hidden=96,
    n_layers=3,
    n_query_heads=3,
    n_kv_heads=1,
    head_dim=32,
    inner=160,
    n_ids=320,
    theta=10_000.0,
    eps=1e-5,
    max_positions=512,
)
"""Every size a multiple of 32, as the blocks want; none equals another by chance."""


def tiny_tokenizer() -> SmolTokenizer:
    """All bytes, one merge, and ids to spare."""
    tokens = [f"<|{idx}|>" for idx in range(N_CONTROL_IDS)]
    tokens += [*BYTE_OF_LETTER, "he"]
    tokens += ["x" * n for n in range(2, 2 + CONFIG.n_ids - len(tokens))]
    return SmolTokenizer(tokens, ["h e"])


@cache
def reference() -> Any:
    """The transformers model with random weights, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=CONFIG.n_ids,
        hidden_size=CONFIG.hidden,
        intermediate_size=CONFIG.inner,
        num_hidden_layers=CONFIG.n_layers,
        num_attention_heads=CONFIG.n_query_heads,
        num_key_value_heads=CONFIG.n_kv_heads,
        head_dim=CONFIG.head_dim,
        max_position_embeddings=CONFIG.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG.theta},
        rms_norm_eps=CONFIG.eps,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = LlamaForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            # Norms that are not 1, and matrices large enough that every row counts.
            draw = torch.rand_like(parameter) + 0.5
            parameter.data = draw if "norm" in name else 0.15 * torch.randn_like(parameter)
    return model


def gguf_tensors(*, encoding: Encoding = "float32") -> dict[str, Rows]:
    """The reference's weights under the names of a GGUF file, in the order of its rows."""
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    n_heads = {"attn_q": CONFIG.n_query_heads, "attn_k": CONFIG.n_kv_heads}
    state = reference().state_dict()
    tensors = {
        "token_embd.weight": _encoded(state["model.embed_tokens.weight"], "q8_0", encoding),
        "output_norm.weight": Rows(encoding="float32", data=state["model.norm.weight"]),
    }
    for idx in range(CONFIG.n_layers):
        for theirs, name in names.items():
            weight = state[f"model.layers.{idx}.{theirs}.weight"]
            if name in n_heads:
                weight = _permuted(weight, n_heads[name])
            tensors[f"blk.{idx}.{name}.weight"] = _encoded(weight, "q4_1", encoding)
    return tensors


def tiny_model(precision: Precision = "float32", encoding: Encoding = "float32") -> SmolModel:
    weights = arrange(gguf_tensors(encoding=encoding), CONFIG)
    return SmolModel(CONFIG, tiny_tokenizer(), weights, precision)


def _permuted(weight: Tensor, n_heads: int) -> Tensor:
    """Source: llama.cpp, convert_hf_to_gguf.py, `LlamaModel.permute`."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _encoded(weight: Tensor, quantized: Encoding, encoding: Encoding) -> Rows:
    """As float32, or quantized by the `gguf` library where `encoding` is not float32."""
    if encoding == "float32" or weight.dim() == 1:
        return Rows(encoding="float32", data=weight)
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[quantized.upper()]
    return Rows(encoding=quantized, data=torch.tensor(quants.quantize(weight.numpy(), kind)))

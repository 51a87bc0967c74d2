"""The LM's weights by ChatGLM's keys.

Source: zai-org/glm-4-9b, `modeling_chatglm.py` (Apache-2.0): queries, keys and values lie in one
matrix, gate and up in another, in the order in which our layers have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from models.checkpoint import take
from models.glm4_voice.config import GlmConfig
from models.layers.transformer import Decoder
from models.weights import load_weights

SOURCE: Final = "model.safetensors"
TABLE: Final = "transformer.embedding.word_embeddings.weight"
HEAD: Final = "transformer.output_layer.weight"
NORM: Final = "transformer.encoder.final_layernorm.weight"
LAYERS: Final = "transformer.encoder.layers"
FREQUENCIES: Final = "transformer.rotary_pos_emb.inv_freq"
"""In the file, and of no use: they follow from the config."""
_NAMES: Final = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.qkv.weight": "self_attention.query_key_value.weight",
    "attention.qkv.bias": "self_attention.query_key_value.bias",
    "attention.out.weight": "self_attention.dense.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate_up.weight": "mlp.dense_h_to_4h.weight",
    "mlp.down.weight": "mlp.dense_4h_to_h.weight",
}
"""Ours in a layer, and theirs."""


def split(
    weights: Mapping[str, Tensor], config: GlmConfig
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Table, head and the rest. Raises: `WeightError`."""
    rest = dict(weights)
    rest.pop(FREQUENCIES, None)
    shape = (config.llama.n_ids, config.llama.backbone.hidden)
    table, head = (take(rest, key, shape, source=SOURCE) for key in (TABLE, HEAD))
    return table, head, rest


def fill_decoder(decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    """Fill the decoder from its keys; nothing may be left. Raises: `WeightError`."""
    names = {"norm.weight": NORM}
    for idx in range(len(decoder.layers)):
        for ours, theirs in _NAMES.items():
            names[f"layers.{idx}.{ours}"] = f"{LAYERS}.{idx}.{theirs}"
    own = {theirs: ours for ours, theirs in names.items()}
    renamed = {own.get(key, key): tensor for key, tensor in tensors.items()}
    load_weights(decoder, renamed, source=SOURCE, names=names)

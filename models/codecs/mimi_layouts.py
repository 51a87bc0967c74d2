"""Weights of Mimi as Moshi's checkpoints name them, brought to the names of `kyutai/mimi`.

Source of the names: `moshi` 0.2.13, `models/compression.py`, `modules/` and `quantization/`. Older
files hold queries, keys and values as `in_proj_weight`, and codebooks under the names of EnCodec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from torch import Tensor

from models.checkpoint import as_halves
from models.codecs.mimi_config import MimiConfig
from models.errors import WeightError

_LAYER: Final = re.compile(r"((?:en|de)coder_transformer)\.transformer\.(layers\.\d+)\.(.+)")
_PARTS: Final = {
    "self_attn.out_projs.0.weight": "self_attn.o_proj.weight",
    "self_attn.out_proj.weight": "self_attn.o_proj.weight",
    "norm1.weight": "input_layernorm.weight",
    "norm1.bias": "input_layernorm.bias",
    "norm2.weight": "post_attention_layernorm.weight",
    "norm2.bias": "post_attention_layernorm.bias",
    "linear1.weight": "mlp.fc1.weight",
    "linear2.weight": "mlp.fc2.weight",
    "layer_scale_1.scale": "self_attn_layer_scale.scale",
    "layer_scale_2.scale": "mlp_layer_scale.scale",
}
_JOINED: Final = ("self_attn.in_projs.0.weight", "self_attn.in_proj_weight")
_CONV: Final = re.compile(
    r"((?:en|de)coder)\.model\.(\d+(?:\.block\.\d+)?)\.(?:conv\.conv|convtr\.convtr)\.(weight|bias)"
)
_RESAMPLING: Final = {
    "downsample.conv.conv.conv.weight": "downsample.conv.weight",
    "upsample.convtr.convtr.convtr.weight": "upsample.conv.weight",
}
_LEVEL: Final = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.vq\.layers\.(\d+)\._codebook\.(\w+)")
_WAY: Final = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.((?:in|out)put_proj\.weight)")
_QUANTIZERS: Final = {
    "rvq_first": "quantizer.semantic_residual_vector_quantizer",
    "rvq_rest": "quantizer.acoustic_residual_vector_quantizer",
}
_CODEBOOK: Final = {
    "embedding_sum": "embed_sum",
    "embed_sum": "embed_sum",
    "embed_avg": "embed_sum",
    "cluster_usage": "cluster_usage",
    "cluster_size": "cluster_usage",
    "_initialized": "initialized",
    "inited": "initialized",
}


def is_moshi_layout(keys: Iterable[str]) -> bool:
    """Whether weights of Mimi are named as in Moshi's checkpoints."""
    return any(key.startswith("quantizer.rvq_first.") for key in keys)


def from_moshi(
    tensors: Mapping[str, Tensor], config: MimiConfig, *, source: str
) -> dict[str, Tensor]:
    """Moshi's names to those of `kyutai/mimi`.

    Moshi turns neighbouring channels of a head, `transformers` channels half a head apart: rows of
    queries and keys change places.

    Raises:
        WeightError: a key is not one of the layout, or its tensor cannot be split; it is named.
    """
    renamed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        layer = _LAYER.fullmatch(key)
        if layer is not None and layer[3] in _JOINED:
            n_inner = config.n_heads * config.head_dim
            if tensor.dim() != 2 or len(tensor) != 3 * n_inner:
                raise WeightError(f"{source}: {key} is {tuple(tensor.shape)}, not 3 x {n_inner}")
            query, key_rows, value = tensor.chunk(3)
            stem = f"{layer[1]}.{layer[2]}.self_attn"
            renamed[f"{stem}.q_proj.weight"] = as_halves(query, config.head_dim)
            renamed[f"{stem}.k_proj.weight"] = as_halves(key_rows, config.head_dim)
            renamed[f"{stem}.v_proj.weight"] = value
        else:
            renamed[_renamed(key, source)] = tensor
    return renamed


def _renamed(key: str, source: str) -> str:
    if key in _RESAMPLING:
        return _RESAMPLING[key]
    if (layer := _LAYER.fullmatch(key)) is not None and layer[3] in _PARTS:
        return f"{layer[1]}.{layer[2]}.{_PARTS[layer[3]]}"
    if (conv := _CONV.fullmatch(key)) is not None:
        return f"{conv[1]}.layers.{conv[2]}.conv.{conv[3]}"
    if (level := _LEVEL.fullmatch(key)) is not None and level[3] in _CODEBOOK:
        return f"{_QUANTIZERS[level[1]]}.layers.{level[2]}.codebook.{_CODEBOOK[level[3]]}"
    if (way := _WAY.fullmatch(key)) is not None:
        return f"{_QUANTIZERS[way[1]]}.{way[2]}"
    raise WeightError(f"{source} has a key of no known layout: {key}")

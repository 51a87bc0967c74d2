"""Weights of a `csm` checkpoint: the layout of `transformers`, or the original one of torchtune.

Source of the names: `transformers` 5, `convert_csm.py` and `CsmForConditionalGeneration`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from models.checkpoint import as_halves, read_config, read_safetensors, read_safetensors_index
from models.csm.config import CsmConfig
from models.errors import WeightError
from models.weights import read_tensors

CODEC: Final = "codec_model."
"""Prefix of the codec's keys in the layout of `transformers`."""
MIMI_FOLDER: Final = "mimi"
"""Where the codec lies beside weights in the original layout."""
MOSHI_FILE: Final = "tokenizer-e351c8d8-checkpoint125.safetensors"
"""The codec as it is published with Moshi, which the original checkpoint means."""
_PARTS: Final = {
    "attn.q_proj.weight": "self_attn.q_proj.weight",
    "attn.k_proj.weight": "self_attn.k_proj.weight",
    "attn.v_proj.weight": "self_attn.v_proj.weight",
    "attn.output_proj.weight": "self_attn.o_proj.weight",
    "mlp.w1.weight": "mlp.gate_proj.weight",
    "mlp.w2.weight": "mlp.down_proj.weight",
    "mlp.w3.weight": "mlp.up_proj.weight",
    "sa_norm.scale": "input_layernorm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
}
_WHOLE: Final = {
    "text_embeddings.weight": "embed_text_tokens.weight",
    "audio_embeddings.weight": "backbone_model.embed_tokens.embed_audio_tokens.weight",
    "projection.weight": "depth_decoder.model.inputs_embeds_projector.weight",
    "codebook0_head.weight": "lm_head.weight",
    "audio_head": "depth_decoder.codebooks_head.weight",
    "backbone.norm.scale": "backbone_model.norm.weight",
    "decoder.norm.scale": "depth_decoder.model.norm.weight",
}
_LAYER = re.compile(r"(backbone|decoder)\.layers\.(\d+)\.(.+)")
_STEMS: Final = {"backbone": "backbone_model.", "decoder": "depth_decoder.model."}


def read_weights(
    folder: Path, config: CsmConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """The LM's weights and the codec's, named as in `transformers`, and what stood before the last.

    Raises:
        WeightError: a file is missing, or a key is of neither layout.
    """
    named = read_config(folder / "config.json").optional("transformers_weights")
    if named is not None:
        tensors = read_safetensors_index(folder, str(named))
    else:
        tensors = read_safetensors(folder)
    if "text_embeddings.weight" in tensors:
        return from_torchtune(tensors, config), _read_codec(folder), ""
    own = {key: tensor for key, tensor in tensors.items() if not key.startswith(CODEC)}
    mimi = {key.removeprefix(CODEC): t for key, t in tensors.items() if key.startswith(CODEC)}
    return own, mimi, CODEC


def _read_codec(folder: Path) -> dict[str, Tensor]:
    """The codec beside weights in the original layout, in either of its own layouts."""
    own = folder / MIMI_FOLDER
    for place in (folder, own):
        if (place / MOSHI_FILE).is_file():
            return read_tensors(place / MOSHI_FILE)
    if not own.is_dir():
        raise WeightError(
            f"{folder} has weights in the original layout and no codec: put {MOSHI_FILE} there, "
            f"or the checkpoint kyutai/mimi into {own}"
        )
    return read_safetensors(own)


def from_torchtune(tensors: Mapping[str, Tensor], config: CsmConfig) -> dict[str, Tensor]:
    """The original names to those of `transformers`.

    torchtune turns neighbouring channels of a head, `transformers` channels half a head apart: rows
    of queries and keys change places.

    Raises:
        WeightError: a key is not one of the layout; it is named.
    """
    renamed = {}
    for key, tensor in tensors.items():
        layer = _LAYER.fullmatch(key)
        if key in _WHOLE:
            renamed[_WHOLE[key]] = tensor
        elif layer is not None and layer[3] in _PARTS:
            shape = config.backbone if layer[1] == "backbone" else config.depth
            head_dim = shape.backbone.head_dim
            name = f"{_STEMS[layer[1]]}layers.{layer[2]}.{_PARTS[layer[3]]}"
            is_turned = layer[3] in ("attn.q_proj.weight", "attn.k_proj.weight")
            renamed[name] = as_halves(tensor, head_dim) if is_turned else tensor
        else:
            raise WeightError(f"model.safetensors has a key of no known layout: {key}")
    return renamed

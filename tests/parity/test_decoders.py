"""Decoders of the Llama kind, loaded from what `transformers` saves, against `transformers`.

Tolerance 1e-4 on hidden states of about 1: float32, sums in another order.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from models.checkpoint import read_config, read_safetensors
from models.errors import WeightError
from models.hugging_face import llama_config, load_decoder, make_decoder
from models.layers.transformer import LLAMA, BlockStyle, Decoder
from tests.models.toy.reference import FullAttention

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
KINDS = {
    "Llama": LLAMA,
    "Qwen2": BlockStyle(has_bias=True),
    "Qwen3": BlockStyle(qk_norm="head"),
    "Olmo2": BlockStyle(qk_norm="row", norms="after"),
}
# Qwen2 has no head_dim of its own: 48 / 4 heads.
HEAD_DIMS = {"Qwen2": 12}


def save(kind: str, folder) -> torch.nn.Module:
    shape = {**SHAPE, "head_dim": HEAD_DIMS.get(kind, SHAPE["head_dim"])}
    config = getattr(transformers, f"{kind}Config")(**shape)
    torch.manual_seed(8)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    return model


def load(kind: str, folder) -> tuple[Decoder, dict[str, torch.Tensor]]:
    config = read_config(folder / "config.json")
    if kind in HEAD_DIMS:
        config.values["head_dim"] = HEAD_DIMS[kind]
    shape = llama_config(config, max_positions=512, style=KINDS[kind])
    decoder = make_decoder(shape)
    tensors = read_safetensors(folder)
    table, _ = tensors.pop("model.embed_tokens.weight"), tensors.pop("lm_head.weight")
    load_decoder(decoder, tensors, "model.", source="model.safetensors")
    return decoder.requires_grad_(False), {"table": table}


@pytest.mark.parametrize("kind", list(KINDS))
def test_hidden_states_are_those_of_transformers(kind, tmp_path):
    reference = save(kind, tmp_path)
    decoder, rest = load(kind, tmp_path)
    ids = torch.randint(0, 50, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference.model(ids.unsqueeze(0)).last_hidden_state[0]
        attention = FullAttention()
        pieces = [
            decoder(rest["table"][ids[first:end]], torch.arange(first, end), attention)
            for first, end in ((0, 25), (25, 26), (26, 40))
        ]
    assert expected.std() > 0.3
    torch.testing.assert_close(torch.cat(pieces), expected, atol=1e-4, rtol=1e-4)


def test_weights_of_another_kind_are_not_taken(tmp_path):
    save("Qwen3", tmp_path)
    config = read_config(tmp_path / "config.json")
    tensors = read_safetensors(tmp_path)
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors.pop(key)
    decoder = make_decoder(llama_config(config, max_positions=512))
    with pytest.raises(WeightError, match=r"know: model\.layers\.0\.self_attn\.k_norm"):
        load_decoder(decoder, tensors, "model.", source="model.safetensors")

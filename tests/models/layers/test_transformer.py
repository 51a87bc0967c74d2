"""The decoder stack against transformers' LlamaModel with random weights."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from models.layers.transformer import Decoder, cast_decoders
from models.spec import BackboneSpec
from tests.models.toy.reference import FullAttention

INNER, THETA, EPS = 56, 1e4, 1e-6
SPECS = {
    "grouped heads": BackboneSpec(
        n_layers=3, n_query_heads=4, n_kv_heads=2, head_dim=8, hidden=32, max_positions=64
    ),
    "head_dim is not hidden / heads": BackboneSpec(
        n_layers=2, n_query_heads=2, n_kv_heads=1, head_dim=20, hidden=24, max_positions=64
    ),
}


def llama(spec: BackboneSpec) -> LlamaModel:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=spec.hidden,
        intermediate_size=INNER,
        num_hidden_layers=spec.n_layers,
        num_attention_heads=spec.n_query_heads,
        num_key_value_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager",
    )
    model = LlamaModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


def with_weights_of(model: LlamaModel, spec: BackboneSpec) -> Decoder:
    ours = Decoder(spec, inner=INNER, theta=THETA, eps=EPS).requires_grad_(False)
    for layer, reference in zip(ours.layers, model.layers, strict=True):
        attention, mlp = reference.self_attn, reference.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        layer.attention.qkv.weight.copy_(torch.cat([p.weight for p in projections]))
        layer.attention.out.weight.copy_(attention.o_proj.weight)
        layer.attention_norm.weight.copy_(reference.input_layernorm.weight)
        layer.mlp_norm.weight.copy_(reference.post_attention_layernorm.weight)
        layer.mlp.gate_up.weight.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        layer.mlp.down.weight.copy_(mlp.down_proj.weight)
    ours.norm.weight.copy_(model.norm.weight)
    return ours


def rows(spec: BackboneSpec, n_rows: int) -> Tensor:
    return torch.randn(n_rows, spec.hidden, generator=torch.Generator().manual_seed(12))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("n_first", [13, 6, 1])
def test_equals_llama_whole_and_row_by_row(name: str, n_first: int):
    spec = SPECS[name]
    reference = llama(spec)
    ours = with_weights_of(reference, spec)
    x = rows(spec, 13)
    expected = reference(inputs_embeds=x.unsqueeze(0), use_cache=False).last_hidden_state[0]

    attention = FullAttention()
    parts = [ours(x[:n_first], torch.arange(n_first), attention)]
    for at in range(n_first, 13):
        parts.append(ours(x[at : at + 1], torch.tensor([at]), attention))
    # 1e-5: a few layers of float32 sums in another order.
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=1e-5)


def test_a_later_row_does_not_reach_back():
    spec = SPECS["grouped heads"]
    ours = with_weights_of(llama(spec), spec)
    x = rows(spec, 9)
    changed = x.clone()
    changed[8] += 1
    before = ours(x, torch.arange(9), FullAttention())
    after = ours(changed, torch.arange(9), FullAttention())
    assert torch.equal(before[:8], after[:8])
    assert not torch.equal(before[8], after[8])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_decoder_takes_and_gives_what_it_did_and_keeps_its_angles(dtype):
    spec = SPECS["grouped heads"]
    exact = with_weights_of(llama(spec), spec)
    cast = with_weights_of(llama(spec), spec)
    cast_decoders(cast, dtype)
    x, positions = rows(spec, 5), torch.tensor([0, 1, 60, 61, 62])
    got, expected = (one(x, positions, FullAttention()) for one in (cast, exact))
    assert got.dtype == torch.float32
    assert not torch.equal(got, expected)
    # bfloat16 keeps 8 bits, of values up to 3 and through three layers.
    torch.testing.assert_close(got, expected, atol=0.1, rtol=0.1)
    assert cast.rotary.table.dtype == torch.float32

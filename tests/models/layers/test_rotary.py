"""Rotary positions against transformers: Llama for halves, GPT-J for neighbours."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from models.layers.rotary import Rotary

HEAD_DIM, N_HEADS = 12, 3
POSITIONS = torch.tensor([0, 1, 5, 5, 299, 17])


def heads(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(POSITIONS), N_HEADS, HEAD_DIM, generator=generator)


@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_halves_equal_llama(theta: float):
    config = LlamaConfig(
        hidden_size=HEAD_DIM * N_HEADS,
        num_attention_heads=N_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=300,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    q, k = heads(1), heads(2)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, POSITIONS.unsqueeze(0))
    expected_q, expected_k = modeling_llama.apply_rotary_pos_emb(
        q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), cos, sin
    )
    rotary = Rotary(HEAD_DIM, 300, theta)
    # 1e-4 at position 299: the reference multiplies position and frequency in float32 (error of
    # the angle up to 300 * 6e-8), ours in float64.
    for ours, expected in ((rotary(q, POSITIONS), expected_q), (rotary(k, POSITIONS), expected_k)):
        torch.testing.assert_close(ours, expected[0].transpose(0, 1), atol=1e-4, rtol=0)


def test_neighbours_equal_gptj():
    x = heads(4)
    table = modeling_gptj.create_sinusoidal_positions(300, HEAD_DIM)
    sin, cos = table[POSITIONS].unsqueeze(0).chunk(2, dim=-1)
    expected = modeling_gptj.apply_rotary_pos_emb(x.unsqueeze(0), sin, cos)[0]
    rotary = Rotary(HEAD_DIM, 300, 1e4, is_interleaved=True)
    # 1e-4: as above, the reference's angles are float32.
    torch.testing.assert_close(rotary(x, POSITIONS), expected, atol=1e-4, rtol=0)


def test_given_frequencies_replace_theta():
    theta, x = 1e4, heads(5)
    inv_freq = 1.0 / theta ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    plain, given = Rotary(HEAD_DIM, 300, theta), Rotary(HEAD_DIM, 300, 7.0, inv_freq=inv_freq)
    assert torch.equal(plain(x, POSITIONS), given(x, POSITIONS))


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_scores_depend_on_the_distance_only(is_interleaved: bool):
    rotary = Rotary(HEAD_DIM, 300, 1e4, is_interleaved=is_interleaved)
    q, k = heads(6)[:1], heads(7)[:1]

    def score(q_at: int, k_at: int) -> Tensor:
        return (rotary(q, torch.tensor([q_at])) * rotary(k, torch.tensor([k_at]))).sum(-1)

    # 1e-4: float32 sines of angles up to 290.
    torch.testing.assert_close(score(9, 2), score(290, 283), atol=1e-4, rtol=0)


def test_half_precision_stays_half():
    rotary = Rotary(HEAD_DIM, 300, 1e4)
    assert rotary(heads(8).half(), POSITIONS).dtype == torch.float16

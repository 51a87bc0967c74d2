"""SwiGLU against transformers' LlamaMLP."""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from models.layers.mlp import SwiGLU


def test_equals_the_reference_with_gate_rows_first():
    torch.manual_seed(3)
    reference = LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=40, num_attention_heads=2))
    ours = SwiGLU(16, 40)
    ours.gate_up.weight.data = torch.cat([reference.gate_proj.weight, reference.up_proj.weight])
    ours.down.weight.data = reference.down_proj.weight
    x = torch.randn(7, 16)
    # 1e-5: one matrix product instead of two changes the order of float32 sums at most.
    torch.testing.assert_close(ours(x), reference(x), atol=1e-5, rtol=1e-5)

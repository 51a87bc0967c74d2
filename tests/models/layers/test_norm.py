"""RMSNorm against transformers' LlamaRMSNorm."""

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from models.layers.norm import RMSNorm


def pair(eps: float = 1e-5) -> tuple[RMSNorm, LlamaRMSNorm]:
    ours, reference = RMSNorm(24, eps), LlamaRMSNorm(24, eps)
    weight = torch.randn(24, generator=torch.Generator().manual_seed(1))
    ours.weight.data.copy_(weight)
    reference.weight.data.copy_(weight)
    return ours, reference


def test_equals_the_reference():
    ours, reference = pair()
    x = 30 * torch.randn(5, 3, 24, generator=torch.Generator().manual_seed(2))
    # 1e-5: both work in float32; only the order of sums differs.
    torch.testing.assert_close(ours(x), reference(x), atol=1e-5, rtol=1e-5)


def test_eps_keeps_silence_silent_and_counts_for_small_values():
    ours, reference = pair(eps=1e-2)
    assert ours(torch.zeros(1, 24)).abs().max() == 0
    x = torch.full((1, 24), 0.05)
    torch.testing.assert_close(ours(x), reference(x), atol=1e-5, rtol=1e-5)
    assert ours(x).abs().max() < 0.6 * ours.weight.abs().max()


def test_half_precision_is_computed_in_float32_and_given_back_as_half():
    ours, _ = pair()
    x = torch.full((1, 24), 300.0, dtype=torch.float16)  # its square overflows half precision
    out = ours(x)
    assert out.dtype == torch.float16
    # 1e-2: half precision has ten bits of mantissa.
    torch.testing.assert_close(out.float(), ours(x.float()), atol=1e-2, rtol=1e-2)

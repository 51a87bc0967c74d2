"""Attention backends: the paged KV pool of the backbone, and the depth model's small cache."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.attention.flashinfer import FlashInferAttention
from engine.attention.kernels import build, load_kernels, wants_flashinfer
from engine.attention.paged import PagedAttention
from engine.config import AttentionChoice, EngineConfig
from engine.sizes import n_sequences, pool_pages
from models.layers import fused
from models.spec import BackboneSpec, ModelSpec


def make_attention(
    spec: ModelSpec, config: EngineConfig, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """The backend for these settings, with a pool as they size it; its kernels are built.

    With FlashInfer, the shared layers use its kernels too from now on.

    Raises:
        EngineConfigError: the backend that is asked for cannot be had here.
    """
    return make_pool(
        spec.backbone,
        config.attention,
        n_pages=pool_pages(spec, config),
        page_size=config.page_size,
        n_sequences=n_sequences(spec, config),
        device=device,
        dtype=dtype,
    )


def make_pool(
    spec: BackboneSpec,
    choice: AttentionChoice,
    *,
    n_pages: int,
    page_size: int,
    n_sequences: int,
    device: torch.device,
    dtype: torch.dtype,
) -> AttentionBackend:
    """The same for a backbone, with a pool of this size."""
    if not wants_flashinfer(choice, spec, device, dtype):
        return PagedAttention(
            spec,
            n_pages=n_pages,
            page_size=page_size,
            n_sequences=n_sequences,
            device=device,
            dtype=dtype,
        )
    kernels = load_kernels()
    attention = FlashInferAttention(
        spec,
        n_pages=n_pages,
        page_size=page_size,
        n_sequences=n_sequences,
        device=device,
        dtype=dtype,
        kernels=kernels,
    )
    build(attention, spec, kernels, device, dtype)
    fused.switch_on(kernels, device.type)
    return attention

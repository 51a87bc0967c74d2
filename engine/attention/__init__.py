"""Attention backends: the paged KV pool of the backbone, and the depth model's small cache."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.attention.paged import PagedAttention
from engine.config import EngineConfig
from engine.sizes import n_sequences, pool_pages
from models.spec import ModelSpec


def make_attention(
    spec: ModelSpec, config: EngineConfig, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """The backend for this device, with a pool as the settings size it."""
    return PagedAttention(
        spec.backbone,
        n_pages=pool_pages(spec, config),
        page_size=config.page_size,
        n_sequences=n_sequences(spec, config),
        device=device,
        dtype=dtype,
    )

"""How large things are: the page pool, the page table, the longest stream. Pure; no device."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import StreamError
from engine.kv_pages import n_pages_for
from models.base import PromptPlan
from models.spec import ModelSpec


def n_sequences(spec: ModelSpec, config: EngineConfig) -> int:
    """Rows of the page table on the device."""
    return config.max_streams * (1 if spec.guidance is None else 2)


def page_bytes(spec: ModelSpec, page_size: int, value_bytes: int) -> int:
    """Bytes of a page: keys and values of its rows in all layers, `value_bytes` each number."""
    backbone = spec.backbone
    n_values = backbone.n_layers * 2 * page_size * backbone.n_kv_heads * backbone.head_dim
    return n_values * value_bytes


def pool_pages(spec: ModelSpec, config: EngineConfig) -> int:
    """Pages of the pool, the dummy page included."""
    return config.n_pages or useful_pages(spec, config)


def useful_pages(spec: ModelSpec, config: EngineConfig) -> int:
    """Pages that all slots fill with streams of the model's longest, and the dummy page."""
    n_longest = n_pages_for(spec.backbone.max_positions, config.page_size)
    return 1 + n_sequences(spec, config) * n_longest


def most_rows(spec: ModelSpec, plan: PromptPlan) -> int:
    """Most rows that a stream may generate: by its plan's caps, and by the model's positions.

    Raises:
        StreamError: the prompt leaves no position to generate at.
    """
    plans = [plan] if plan.companion is None else [plan, plan.companion]
    n_used = max(
        len(p.ids) if p.positions is None else max(len(p.ids), int(p.positions[-1]) + 1)
        for p in plans
    )
    n_left = spec.backbone.max_positions - n_used
    if n_left < 1:
        message = f"the prompt has {n_used} rows, under {spec.backbone.max_positions} are accepted"
        raise StreamError("prompt_too_long", message)
    if plan.max_rows is not None:
        return min(n_left, plan.max_rows)
    if not any(phase.feeds_codec for phase in spec.phases):
        return min(n_left, plan.max_frames)
    if not all(phase.feeds_codec for phase in spec.phases):
        return n_left
    max_delay = max(column.delay_rows for column in spec.columns)
    # One row more for the end mark.
    return min(n_left, plan.max_frames * spec.frame.rows_per_frame + max_delay + 1)

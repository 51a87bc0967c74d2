"""What a decode step reads of its weights: matrices as often as they are used, rows of tables."""

from __future__ import annotations

from loadtest.gpu_check.random_models import MODELS
from loadtest.gpu_check.reading import step_bytes
from loadtest.gpu_check.where import Where

DRY = Where(is_dry=True)
LOOKED_UP_BYTES = 40_000
"""Rows of tables, of which the smallest has 0.5 MB."""


def n_bytes(*modules) -> int:
    return sum(part.nbytes for module in modules for part in module.parameters())


def test_orpheus_reads_its_decoder_and_its_head():
    model = MODELS["orpheus-3b"](DRY, is_small=True)
    least = n_bytes(model.decoder, model.head)
    assert least <= step_bytes(model, DRY) < least + LOOKED_UP_BYTES


def test_qwen3_tts_reads_its_depth_model_at_each_codebook():
    model = MODELS["qwen3-tts-1.7b"](DRY, is_small=True)
    once = (model.decoder, model.first_head, *model.other_heads)
    # The backbone's state is the first of 16 positions.
    least = n_bytes(*once) + 16 * n_bytes(model.predictor, model.to_predictor)
    assert least <= step_bytes(model, DRY) < least + LOOKED_UP_BYTES

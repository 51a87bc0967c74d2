"""Embedding and heads of the language model."""

from __future__ import annotations

import torch

from tests.models.pico.harness import tiny_model

ROW = [3, 10, 11, 12, 13, 14, 5, 7, 32]
"""Advance, five units, stay, two codes (the second absent)."""


def test_an_audio_row_is_the_sum_of_its_tables_but_not_of_the_advance() -> None:
    model, weights = tiny_model()
    lm = weights["lm"]
    expected = sum(lm[f"wemb.{j}.weight"][10 + j] for j in range(5))
    expected = expected + lm["semb.weight"][5] + lm["cemb.0.weight"][7] + lm["cemb.1.weight"][32]
    for advance in (0, 4):
        ids = torch.tensor([[advance, *ROW[1:]]])
        got = model.embed(ids, torch.tensor([0]))[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_prompt_row_is_its_unit_alone() -> None:
    model, weights = tiny_model()
    ids = torch.tensor([ROW, ROW, [0, 100, 9, 9, 9, 9, 9, 9, 9]])
    x = model.embed(ids, torch.tensor([-1, 0, -1]))
    assert torch.equal(x[0], weights["lm"]["temb.weight"][10])
    assert torch.equal(x[2], weights["lm"]["temb.weight"][100])
    assert not torch.equal(x[0], x[1])


def test_heads_are_in_the_order_of_the_sampled_columns() -> None:
    model, weights = tiny_model(n_books=3)
    hidden = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    names = [model.spec.columns[idx].name for idx in model.spec.backbone_columns]
    assert names == ["advance", "code0", "code1", "code2"]
    keys = ["ahead.weight", "heads.0.weight", "heads.1.weight", "heads.2.weight"]
    for logits, key, idx in zip(
        model.heads(hidden), keys, model.spec.backbone_columns, strict=True
    ):
        assert logits.shape == (2, model.spec.columns[idx].n_ids)
        torch.testing.assert_close(logits, hidden @ weights["lm"][key].T, rtol=0, atol=1e-5)

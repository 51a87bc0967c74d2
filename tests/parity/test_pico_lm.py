"""The language model of `pico` against a plain whole-sequence implementation."""

from __future__ import annotations

import pytest
import torch

from models.spec import PlanRequest
from tests.models.pico.harness import roll_out, tiny_model
from tests.parity import pico_reference as reference

# Logits are of size 10; float32 sums in another order differ by 1e-5.
LOGITS = 1e-4
LONG_TEXT = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps until the next morning."
)


def sizes(n_books: int) -> reference.Sizes:
    return reference.Sizes(n_books=n_books, n_codes=32, n_layers=2, n_heads=2, max_stay=4)


@pytest.mark.parametrize("n_books", [1, 2, 3])
@pytest.mark.parametrize("text", ["Hi.", LONG_TEXT])
def test_greedy_roll_out_and_logits_agree(text: str, n_books: int) -> None:
    """Each of up to 200 rows: the logits of every column, and the very same ids."""
    model, weights = tiny_model(n_books, seed=n_books)
    plan = model.plan(PlanRequest(text=text))
    take = roll_out(model, [plan], 200)[0]
    said, logits = reference.roll_out(sizes(n_books), weights["lm"], plan.ids[:, 1].tolist(), 200)
    assert len(take.logits) == len(logits)
    for ours, theirs in zip(take.logits, logits, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=LOGITS)
    assert torch.equal(torch.stack(take.frames), reference.frame_table(said)[: len(take.frames)])
    if text != LONG_TEXT:
        assert take.is_finished
        assert len(take.frames) == said.length

"""State, rules and timing of the text pointer and the delayed codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.pico.config import END
from models.pico.grammar import MAX_PROMPT, Grammar
from tests.models.pico.harness import tiny_config

ABSENT = 32
PROMPT = torch.tensor([1, 11, 12, 13, 14, 2])
LAST = 4


def draw_row(grammar: Grammar, advance: int, codes: list[int]) -> Tensor:
    """A sampled row: only the sampled columns hold something, the others hold garbage."""
    row = torch.full((1, grammar.n_columns), 9)
    row[0, 0] = advance
    row[0, grammar.code_columns] = torch.tensor(codes)
    return row


def allowed(grammar: Grammar, state: Tensor) -> list[int]:
    logits = grammar.constrain(state[None], torch.zeros(1, 5))
    return torch.isfinite(logits[0]).nonzero().flatten().tolist()


def test_rows_follow_the_pointer_and_delay_the_codes() -> None:
    """Two books: row r holds the window at step r, code 0 of step r - 1, code 1 of step r - 2."""
    grammar = Grammar(tiny_config())
    state = grammar.start(PROMPT)[None]
    rows, emitted, finished = [], [], []
    for call, advance in enumerate([1, 0, 3, END, 2]):
        out = grammar.advance(state, draw_row(grammar, advance, [call, 10 + call]))
        state = out.state
        rows.append(out.rows[0, 1:].tolist())
        emitted.append(out.frames[0].tolist() if out.emits[0] else None)
        finished.append(bool(out.is_finished[0]))
    assert rows == [
        [1, 11, 12, 13, 14, 0, ABSENT, ABSENT],
        [1, 11, 12, 13, 14, 1, 1, ABSENT],
        [13, 14, 2, 0, 0, 0, 2, 12],
        [13, 14, 2, 0, 0, 16, 3, 13],
        [13, 14, 2, 0, 0, 16, ABSENT, 14],
    ]
    # A frame holds the codes of its own step, then its window and stay.
    assert emitted == [
        None,
        None,
        [1, 12, 1, 11, 12, 13, 14, 0],
        [2, 13, 1, 11, 12, 13, 14, 1],
        [3, 14, 13, 14, 2, 0, 0, 0],
    ]
    assert finished == [False, False, False, False, True]


@pytest.mark.parametrize("n_books", [1, 2, 3])
def test_every_step_becomes_one_frame_with_its_own_codes(n_books: int) -> None:
    grammar = Grammar(tiny_config(n_books))
    state = grammar.start(PROMPT)[None]
    n_steps, frames, n_calls = 7, [], 0
    while True:
        advance = [1, 1, 1, 1][n_calls] if n_calls < 4 else 0 if n_calls < n_steps else END
        # The code of book i at call t belongs to step t - 1 - i; name it after that step.
        codes = [max(0, n_calls - 1 - book) for book in range(n_books)]
        out = grammar.advance(state, draw_row(grammar, advance, codes))
        state, n_calls = out.state, n_calls + 1
        frames += [out.frames[0]] if out.emits[0] else []
        if out.is_finished[0]:
            break
    assert n_calls == n_steps + n_books
    assert [frame[:n_books].tolist() for frame in frames] == [[s] * n_books for s in range(7)]
    assert [int(frame[-1]) for frame in frames] == [0, 0, 0, 0, 1, 2, 3]
    assert [int(frame[n_books + 1]) for frame in frames] == [11, 12, 13, 14, 14, 14, 14]


def test_pointer_cannot_leave_the_text_and_end_comes_only_at_its_last_unit() -> None:
    grammar = Grammar(tiny_config())
    state = grammar.start(PROMPT)[None]
    seen = [allowed(grammar, state[0])]
    for advance in (2, 1, 1):
        state = grammar.advance(state, draw_row(grammar, advance, [0, 0])).state
        seen.append(allowed(grammar, state[0]))
    assert seen == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0, END]]


def test_a_long_stay_forces_the_pointer_on_and_then_the_end() -> None:
    grammar = Grammar(tiny_config())
    limit = tiny_config().max_stay
    state = grammar.start(torch.tensor([1, 11, 2]))[None]
    state = grammar.advance(state, draw_row(grammar, 0, [0, 0])).state
    for _ in range(limit):
        assert 0 in allowed(grammar, state[0])
        state = grammar.advance(state, draw_row(grammar, 0, [0, 0])).state
    assert allowed(grammar, state[0]) == [1]
    state = grammar.advance(state, draw_row(grammar, 1, [0, 0])).state
    for _ in range(limit):
        state = grammar.advance(state, draw_row(grammar, 0, [0, 0])).state
    assert allowed(grammar, state[0]) == [END]


def test_drain_ignores_what_is_drawn_for_the_advance() -> None:
    grammar = Grammar(tiny_config(3))
    state = grammar.start(PROMPT)[None]
    for advance in (3, 1, END):
        state = grammar.advance(state, draw_row(grammar, advance, [0, 0, 0])).state
    assert END in allowed(grammar, state[0]), "something can be drawn while the books drain"
    first = grammar.advance(state, draw_row(grammar, 1, [5, 6, 7]))
    assert first.rows[0, 1:7].tolist() == [13, 14, 2, 0, 0, 16]
    assert not first.is_finished[0]
    second = grammar.advance(first.state, draw_row(grammar, 0, [5, 6, 7]))
    assert second.is_finished[0]


def test_rows_of_a_batch_are_independent_and_advance_is_pure() -> None:
    grammar = Grammar(tiny_config())
    prompts = [PROMPT, torch.tensor([1, 20, 2]), torch.arange(1, MAX_PROMPT + 1) % 100]
    state = torch.stack([grammar.start(prompt) for prompt in prompts])
    generator = torch.Generator().manual_seed(3)
    for _ in range(12):
        logits = torch.randn(3, 5, generator=generator)
        drawn = grammar.constrain(state, logits).argmax(1)
        rows = torch.randint(0, 32, (3, grammar.n_columns), generator=generator)
        rows[:, 0] = drawn
        before = (state.clone(), rows.clone())
        together = grammar.advance(state, rows)
        assert torch.equal(state, before[0])
        assert torch.equal(rows, before[1])
        for idx in range(3):
            alone = grammar.advance(state[idx : idx + 1], rows[idx : idx + 1])
            assert torch.equal(alone.rows[0], together.rows[idx])
            assert torch.equal(alone.state[0], together.state[idx])
            assert torch.equal(alone.frames[0], together.frames[idx])
            assert alone.is_finished[0] == together.is_finished[idx]
        state = together.state

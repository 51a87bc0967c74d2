"""Sampling: each filter, independence of rows and batches, the history of the penalty."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.chance import uniforms
from engine.sampler import (
    ALL_FILTERS,
    NEVER,
    Filters,
    Sampler,
    keep_min_p,
    keep_top,
    penalised,
    pick,
    stream_settings,
)
from models.spec import MAX_REPETITION_WINDOW, SamplingParams
from models.toy.delayed import SPEC as DELAYED
from models.toy.mixed import SPEC as MIXED

CPU = torch.device("cpu")


def kept(logits: Tensor) -> list[list[int]]:
    return [torch.nonzero(row > NEVER).flatten().tolist() for row in logits]


def as_row(*values: float) -> Tensor:
    return torch.tensor([values])


def test_top_k_keeps_the_k_likeliest():
    logits = as_row(0.0, 3.0, 1.0, 2.0)
    for k, expected in ((1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])):
        out = keep_top(logits, torch.tensor([float(k)]), torch.tensor([1.0]), 4)
        assert kept(out) == [expected]


def test_top_p_keeps_the_fewest_ids_that_hold_the_mass():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for p, expected in ((0.4, [0]), (0.5001, [0, 1]), (0.79, [0, 1]), (0.81, [0, 1, 2])):
        out = keep_top(logits, torch.tensor([0.0]), torch.tensor([p]), 4)
        assert kept(out) == [expected]


def test_top_p_counts_the_mass_within_top_k():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    # Of the two kept ids the first holds 0.5 / 0.8 = 0.625.
    out = keep_top(logits, torch.tensor([2.0]), torch.tensor([0.6]), 4)
    assert kept(out) == [[0]]


def test_top_p_of_all_counts_what_top_k_leaves_out():
    logits = torch.tensor([[0.4, 0.2, 0.15, 0.14, 0.11]]).log().expand(2, 5)
    top_k, top_p, is_of_all = (
        torch.tensor([3.0, 3.0]),
        torch.tensor([0.5, 0.5]),
        torch.tensor([0, 1]),
    )
    # The first of the three holds 0.4 / 0.75 = 0.53 of what they hold, and 0.4 of all.
    assert kept(keep_top(logits, top_k, top_p, 3, is_of_all)) == [[0], [0, 1]]
    # All of the three together hold less than 0.8: then they stay, and no more.
    assert kept(keep_top(logits, top_k, torch.full((2,), 0.8), 4, is_of_all))[1] == [0, 1, 2]
    soundless = torch.full((1, 5), NEVER)
    assert kept(keep_top(soundless, top_k[:1], top_p[:1], 3, torch.ones(1))) == [[]]


def test_rows_with_filters_off_are_left_alone_beside_others():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    top_k, top_p = torch.tensor([0.0, 5.0, 0.0]), torch.tensor([1.0, 1.0, 0.3])
    out = keep_top(logits, top_k, top_p, 50)
    assert torch.equal(out[0], logits[0])
    assert len(kept(out)[1]) == 5


def test_min_p_is_relative_to_the_likeliest():
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert kept(keep_min_p(logits, torch.tensor([0.4]))) == [[0, 1]]
    assert kept(keep_min_p(logits, torch.tensor([0.0]))) == [[0, 1, 2]]


def test_penalty_divides_positive_and_multiplies_negative_once():
    logits = as_row(2.0, -2.0, 2.0)
    out = penalised(logits, torch.tensor([[0, 1, 0, -1]]), torch.tensor([2.0]))
    assert out.tolist() == [[1.0, -4.0, 2.0]]


def test_uniforms_lie_between_and_do_not_repeat():
    seeds = torch.arange(200)
    out = uniforms(seeds, torch.arange(200) % 3, torch.arange(1, 9))
    assert bool(((out > 0) & (out < 1)).all())
    assert out.unique().numel() > 0.99 * out.numel()
    # Mean and spread of 1600 even draws, at five standard errors.
    assert abs(float(out.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / out.numel())
    assert abs(float(out.var()) - 1 / 12) < 0.01


def test_neighbouring_counters_and_columns_are_unrelated():
    out = uniforms(torch.zeros(4000, dtype=torch.int64), torch.arange(4000), torch.arange(1, 3))
    by_counter = np.corrcoef(out[:-1, 0].numpy(), out[1:, 0].numpy())[0, 1]
    by_column = np.corrcoef(out[:, 0].numpy(), out[:, 1].numpy())[0, 1]
    # Five standard errors of a correlation of 4000 pairs.
    assert max(abs(by_counter), abs(by_column)) < 5 / math.sqrt(4000)


def test_pick_follows_the_probabilities():
    probabilities = torch.tensor([0.5, 0.25, 0.2, 0.05, 0.0])
    n = 20_000
    uniform = uniforms(torch.arange(n), torch.zeros(n, dtype=torch.int64), torch.tensor([1]))[:, 0]
    drawn = pick(probabilities.log().expand(n, 5), uniform)
    shares = torch.bincount(drawn, minlength=5) / n
    # Five standard errors of the widest share.
    assert torch.allclose(shares, probabilities, atol=5 * math.sqrt(0.25 / n))
    assert shares[4] == 0


@given(
    uniform=st.floats(2.0**-24, 1 - 2.0**-24, width=32),
    allowed=st.sets(st.integers(0, 30), min_size=1),
    seed=st.integers(0, 100),
)
@settings(max_examples=80, deadline=None)
def test_pick_never_takes_a_masked_id(uniform, allowed, seed):
    logits = 20 * torch.randn(1, 31, generator=torch.Generator().manual_seed(seed))
    masked = torch.full_like(logits, NEVER)
    index = torch.tensor(sorted(allowed))
    masked[0, index] = logits[0, index]
    assert int(pick(masked, torch.tensor([uniform]))) in allowed


def test_a_row_without_finite_logits_gives_a_legal_index():
    for value in (NEVER, math.nan, math.inf):
        drawn = pick(torch.full((1, 7), value), torch.tensor([0.5]))
        assert 0 <= int(drawn) < 7


def draws_of(sampler: Sampler, slots: list[int], phase: list[int] | None = None):
    host = np.array(slots)
    phases = torch.zeros(len(slots), dtype=torch.int64) if phase is None else torch.tensor(phase)
    return sampler.begin(torch.tensor(slots), phases, sampler.filters(host))


def delayed_sampler(n_slots: int = 8) -> Sampler:
    return Sampler(DELAYED, n_slots, CPU)


def draw_rows(sampler: Sampler, slots: list[int], n_rows: int, seed: int) -> list[list[int]]:
    """Rows of column 1 that the last of `slots` draws from logits that depend on `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    mine = []
    n_ids = DELAYED.columns[1].n_ids
    for _ in range(n_rows):
        own = torch.randn(1, n_ids, generator=generator)
        others = torch.randn(len(slots) - 1, n_ids)
        draws = draws_of(sampler, slots)
        logits = sampler.shape(torch.cat([others, own]), 1, draws)
        ids, is_sound = sampler.draw(logits, 1, draws)
        assert bool(is_sound.all())
        rows = ids.unsqueeze(1).expand(-1, DELAYED.n_columns)
        sampler.commit(draws, draws.slots, rows, torch.ones_like(rows, dtype=torch.bool))
        mine.append(int(ids[-1]))
    return mine


@given(
    settings_=st.builds(
        SamplingParams,
        temperature=st.sampled_from((0.0, 0.5, 1.0, 2.0)),
        top_k=st.sampled_from((0, 1, 3, 1000)),
        top_p=st.sampled_from((0.2, 0.9, 1.0)),
        min_p=st.sampled_from((0.0, 0.1)),
        repetition_penalty=st.sampled_from((1.0, 1.5)),
        repetition_window=st.sampled_from((0, 2, 64)),
        is_top_p_of_all=st.booleans(),
        redraw_window=st.sampled_from((0, 3)),
        redraw_count=st.sampled_from((1, 2)),
    ),
    others=st.lists(
        st.builds(
            SamplingParams,
            top_k=st.sampled_from((0, 2)),
            top_p=st.sampled_from((0.5, 1.0)),
            min_p=st.sampled_from((0.0, 0.5)),
            repetition_penalty=st.sampled_from((1.0, 3.0)),
            is_top_p_of_all=st.booleans(),
            redraw_window=st.sampled_from((0, 10)),
        ),
        max_size=4,
    ),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=25, deadline=None)
def test_a_draw_never_depends_on_slot_or_neighbours(settings_, others, seed):
    """Fault 14: one stream's repetition penalty marked every row and every codebook."""
    name = DELAYED.columns[1].name
    alone = delayed_sampler()
    alone.open_slot(0, seed, {name: settings_})
    expected = draw_rows(alone, [0], 6, seed=5)

    crowded = delayed_sampler()
    crowded.open_slot(7, seed, {name: settings_})
    for slot, params in enumerate(others):
        crowded.open_slot(slot, slot, {name: params})
    assert draw_rows(crowded, [*range(len(others)), 7], 6, seed=5) == expected


def test_seeds_differ_and_repeat():
    def rows(seed: int) -> list[list[int]]:
        sampler = delayed_sampler()
        sampler.open_slot(0, seed, {})
        return draw_rows(sampler, [0], 20, seed=5)

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_penalty_keeps_to_its_column_and_its_window():
    """Fault 14, second half: one token marked all codebooks of a row."""
    name, other = DELAYED.columns[1].name, DELAYED.columns[2].name
    params = SamplingParams(temperature=0.0, repetition_penalty=4.0, repetition_window=2)
    sampler = delayed_sampler()
    sampler.open_slot(0, 0, {name: params, other: params})
    low = [column.ids[0] for column in DELAYED.columns]
    logits = torch.ones(1, DELAYED.columns[1].n_ids)
    is_drawn = torch.ones(1, DELAYED.n_columns, dtype=torch.bool)
    for id_ in (3, 5, 7):
        draws = draws_of(sampler, [0])
        row = torch.tensor([[low[0], low[1] + id_, low[2] + id_ + 1, low[3]]])
        sampler.commit(draws, draws.slots, row, is_drawn)
    draws = draws_of(sampler, [0])
    allowed = torch.zeros(1, DELAYED.columns[2].n_ids) + 1.0
    weakened = torch.nonzero(sampler.shape(logits, 1, draws)[0] < 1).flatten().tolist()
    assert weakened == [5, 7]
    weakened = torch.nonzero(sampler.shape(allowed, 2, draws)[0] < 1).flatten().tolist()
    assert weakened == [6, 8]


def test_a_reused_slot_forgets_the_last_streams_history():
    name = DELAYED.columns[1].name
    params = SamplingParams(repetition_penalty=4.0)
    fresh, used = delayed_sampler(), delayed_sampler()
    used.open_slot(0, 9, {name: params})
    draw_rows(used, [0], 5, seed=1)
    for sampler in (fresh, used):
        sampler.open_slot(0, 3, {name: params})
    assert draw_rows(used, [0], 8, seed=2) == draw_rows(fresh, [0], 8, seed=2)


def test_the_history_outlives_its_ring():
    name = DELAYED.columns[1].name
    sampler = delayed_sampler()
    sampler.open_slot(0, 3, {name: SamplingParams(repetition_penalty=1.5, repetition_window=4)})
    draw_rows(sampler, [0], MAX_REPETITION_WINDOW + 3, seed=2)
    draws = draws_of(sampler, [0])
    logits = torch.ones(1, DELAYED.columns[1].n_ids)
    weakened = int((sampler.shape(logits, 1, draws) < 1).sum())
    assert 1 <= weakened <= 4


def test_phases_mask_their_columns():
    sampler = delayed_sampler()
    sampler.open_slot(0, 0, {})
    sampler.open_slot(1, 0, {})
    column = DELAYED.columns[0]
    logits = torch.zeros(2, column.n_ids)
    draws = draws_of(sampler, [0, 1], [0, 1])
    out = sampler.shape(logits, 0, draws)
    allowed = DELAYED.phases[0].columns[0].allowed
    expected = [id_ for low, high in allowed for id_ in range(low, high)]
    assert kept(out)[0] == expected
    assert len(kept(out)[1]) == column.n_ids


def test_an_override_holds_in_every_phase_and_one_of_a_phase_goes_before_it():
    text, audio = MIXED.phase_idx("text"), MIXED.phase_idx("audio")
    name = MIXED.columns[0].name
    plain = stream_settings(MIXED, {})
    both = stream_settings(MIXED, {name: SamplingParams(top_k=3)})
    assert both[[text, audio], 0, 1].tolist() == [3, 3]
    one = {f"audio.{name}": SamplingParams(top_k=5)}
    alone = stream_settings(MIXED, one)
    assert alone[[text, audio], 0, 1].tolist() == [plain[text, 0, 1], 5]
    mixed = stream_settings(MIXED, {**one, name: SamplingParams(top_k=3)})
    assert mixed[[text, audio], 0, 1].tolist() == [3, 5]


def test_filters_cover_those_that_need_no_more():
    most = Filters(
        n_sorted=9,
        has_chance=True,
        has_min_p=True,
        n_recent=9,
        n_redraw=9,
        has_top_p_of_all=True,
    )
    assert most.covers(most)
    assert ALL_FILTERS.covers(most)
    for field in dataclasses.fields(Filters):
        value = getattr(most, field.name)
        less = replace(most, **{field.name: False if value is True else value - 1})
        assert not less.covers(most), field.name
        assert most.covers(less), field.name

"""The bench of guided decoding runs, and its ways do the same work. No figure is judged."""

from __future__ import annotations

from loadtest.bench.guidance.__main__ import measure
from loadtest.bench.guidance.apart import Apart
from loadtest.bench.guidance.model import SIZES, make_model
from loadtest.bench.guidance.pairs import Together

SMALL = SIZES["small"]


def test_each_way_is_measured_against_its_base(monkeypatch):
    monkeypatch.setattr("loadtest.bench.guidance.__main__.N_ROUNDS", 1)
    rows = measure(SMALL)
    ways = [(row["what"], row["way"], row["over"]) for row in rows]
    assert ways == [
        ("steps of speech", "unguided", "unguided"),
        ("steps of speech", "pairs", "unguided"),
        ("whole answers", "pairs", "apart"),
        ("whole answers", "apart", "apart"),
        ("whole answers", "apart, late", "apart"),
    ]
    assert all(row["frames_per_s"] > 0 and row["ratio"] > 0 for row in rows)


def test_both_ways_run_the_rows_that_an_answer_has():
    """Pairs take two rows while they speak; requests apart, from the first row on."""
    model = make_model(SMALL)
    together = Together(model, SMALL)
    n_before = together.loop.metrics.decode_rows.sum
    together.measure(is_guided=True)
    n_speech = SMALL.n_rows - SMALL.n_rows_before
    n_rows = SMALL.n_rows_before + 2 * n_speech
    assert together.loop.metrics.decode_rows.sum - n_before == SMALL.n_pairs * n_rows
    for is_late in (False, True):
        apart = Apart(model, SMALL, is_late=is_late)
        apart.frames_per_s()
        assert {int(n) for n in apart.n_rows} == {64 + SMALL.n_rows}

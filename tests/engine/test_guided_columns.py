"""Columns of one id space and guided pairs in one engine: toys shaped as Bagpiper and as OpusLM.

How a pair equals two sequences merged by hand, what scale 1 is, and which pages zero companions
share is tested in `test_runner`; who is in a step, in `test_scheduler` and `test_batch`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.sampler import Sampler
from models.toy.mixed import (
    AUDIO,
    AUDIO_MARK,
    BRIDGE,
    CODE_LOW,
    END_OF_TEXT,
    LETTERS,
    N_CODES,
    TEXT,
)
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

SHAPED = ("toy-mixed", "toy-delayed")


@pytest.mark.parametrize("name", SHAPED)
def test_all_columns_of_a_step_come_of_one_look_at_its_hidden_states(name, monkeypatch):
    model = load_toy(name)
    seen: list[int] = []
    heads = model.heads

    def counted(hidden: Tensor) -> list[Tensor]:
        seen.append(len(hidden))
        return heads(hidden)

    monkeypatch.setattr(model, "heads", counted)
    engine = Engine(model)
    for seed, text in enumerate(TEXTS):
        engine.open(make_plan(model, text), seed=seed)
    decode, rows = engine.loop.metrics.decode_rows, []
    while True:
        n_calls, n_rows = len(seen), decode.sum
        if engine.step() is None:
            break
        if decode.sum > n_rows:
            rows.append((seen[-1], decode.sum - n_rows))
            assert len(seen) - n_calls <= 2, "one call of a prefill, one of a decode step"
    # Rows of streams and of companions together: the merge needs both.
    assert all(n_seen == n_run for n_seen, n_run in rows)
    assert max(n_seen for n_seen, _ in rows) > len(TEXTS)


@pytest.mark.parametrize("name", SHAPED)
def test_pairs_are_never_parted_by_a_small_step(name):
    """Three rows fit a step, a pair takes two: the third stays empty."""
    model = load_toy(name)
    config = replace(CONFIG, max_streams=3, max_batch_rows=3, prefill_rows_per_step=3)
    plans = [make_plan(model, text) for text in TEXTS[:3]]
    expected = [Engine(model).speak([plan], seeds=[7])[0] for plan in plans]
    engine = Engine(model, config)
    ids = [engine.open(plan, seed=7) for plan in plans]
    engine.run()
    for stream_id, wanted in zip(ids, expected, strict=True):
        assert len(engine.pcm(stream_id)) == len(wanted)
        torch.testing.assert_close(
            torch.from_numpy(engine.pcm(stream_id)), torch.from_numpy(wanted), atol=1e-5, rtol=0
        )
    largest = engine.loop.metrics.decode_rows.largest
    assert largest == (2 if name == "toy-delayed" else 3)
    engine.check_is_empty()


def test_the_phase_is_the_stream_s_own_and_no_guess_of_its_logits(monkeypatch):
    """A raw logit of a code that towers above all text does not end the text."""
    model = load_toy("toy-mixed")
    heads = model.heads

    def towering(hidden: Tensor) -> list[Tensor]:
        first, *others = heads(hidden)
        raised = first.clone()
        raised[:, CODE_LOW : CODE_LOW + N_CODES] += 1000.0
        return [raised, *others]

    monkeypatch.setattr(model, "heads", towering)
    plan = make_plan(model, "hi", reply_letters=6, frames=4)
    engine = Engine(model)
    stream_id = engine.open(plan, seed=1)
    phases = []
    while engine.step() is not None:
        (group,) = engine.loop._active.values() or [None]
        if group is not None and group.stream.phase_idx not in phases[-1:]:
            phases.append(group.stream.phase_idx)
    text = engine.text(stream_id)
    assert len(text) == 6
    assert text.isascii()
    assert text.islower()
    assert phases[:3] == [TEXT, BRIDGE, AUDIO]
    assert engine.finished(stream_id).n_frames == 4


@pytest.mark.parametrize("name", SHAPED)
def test_masks_come_after_the_merge(name, monkeypatch):
    """Of two masked logits the difference is not a number; of raw ones it is."""
    model = load_toy(name)
    has_mask = False
    shape = Sampler.shape

    def watched(self: Sampler, logits: Tensor, column_idx: int, draws: object) -> Tensor:
        nonlocal has_mask
        assert bool(logits.isfinite().all()), "merged logits are raw"
        shaped = shape(self, logits, column_idx, draws)
        assert not bool(shaped.isnan().any())
        has_mask |= bool(shaped.isneginf().any())
        return shaped

    monkeypatch.setattr(Sampler, "shape", watched)
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, TEXTS[0]), seed=2)
    engine.run()
    assert engine.finished(stream_id).reason == "stop"
    assert has_mask


def test_bridge_rows_go_in_as_they_are_written(monkeypatch):
    """Nothing is drawn in a bridge: its row stands in the state whatever the logits say."""
    model = load_toy("toy-mixed")
    fed: list[list[int]] = []
    embed = model.embed

    def watched(ids: Tensor, phase: Tensor) -> Tensor:
        fed.extend(ids[phase >= 0].tolist())
        return embed(ids, phase)

    monkeypatch.setattr(model, "embed", watched)
    plan = replace(make_plan(model, "hi", reply_letters=2, frames=3), guidance_scale=1.0)
    Engine(model).speak([plan], seeds=[5])
    first = [row[0] for row in fed]
    letters = range(*LETTERS)
    assert first[0] in letters
    assert first[1] in letters
    assert first[2:4] == [END_OF_TEXT, AUDIO_MARK]
    assert all(row[1:] == [0, 0] for row in fed[:4])

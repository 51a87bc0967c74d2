"""Slots and pages of stream groups: admission, companions that come and go, shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import StreamError
from engine.groups import Groups, StreamGroup
from engine.types import OpenStream, StreamId
from models.base import PromptPlan
from models.toy.delayed import SPEC as DELAYED
from models.toy.interleaved import SPEC as INTERLEAVED
from models.toy.mixed import AUDIO, DRAIN, TEXT
from models.toy.mixed import SPEC as MIXED

PAGE_SIZE = 4
CONFIG = EngineConfig(max_streams=3, max_batch_rows=8, page_size=PAGE_SIZE, n_pages=200)


class NoTensors:
    """Takes the runner's place: remembers what it was told."""

    def __init__(self) -> None:
        self.bound: dict[tuple[int, int], list[int]] = {}
        self.scrubbed: list[int] = []
        self.refuses = False

    def open_slot(self, slot: int, plan: PromptPlan, seed: int) -> None:
        if self.refuses:
            raise StreamError("model_error", "no such setting")

    def bind(self, slot: int, sequence_idx: int, prompt: object, pages: Sequence[int]) -> None:
        self.bound[slot, sequence_idx] = list(pages)

    def scrub(self, pages: Sequence[int]) -> None:
        self.scrubbed += pages


def make_groups(spec, config: EngineConfig = CONFIG) -> tuple[Groups, NoTensors]:
    runner = NoTensors()
    return Groups(
        replace(spec, backbone=replace(spec.backbone, max_positions=128)), config, runner
    ), runner


def make_plan(spec, n_rows: int, **fields: object) -> PromptPlan:
    state = torch.zeros(spec.state_size, dtype=torch.int64)
    ids = torch.arange(n_rows).unsqueeze(1).expand(-1, spec.n_columns)
    return PromptPlan(ids=ids, state=state, **{"max_frames": 5, **fields})


def admit(groups: Groups, plan: PromptPlan, number: int = 1) -> StreamGroup:
    group = groups.make(OpenStream(stream_id=StreamId(number), plan=plan, seed=0, asked_s=0.0))
    n_free = groups.pages.n_free
    demand = groups.demand(group)
    groups.admit(group)
    assert n_free - groups.pages.n_free == demand.n_pages
    groups.check()
    return group


def feed(group: StreamGroup, n_rows: int) -> None:
    """As if the stream's prompts had run and `n_rows` rows were generated."""
    stream = group.stream
    stream.n_prefilled = list(stream.n_prompt_rows)
    stream.n_rows += n_rows
    stream.sequences[0].n_rows = group.prompts[0].n_rows + stream.n_rows - 1


def test_the_worst_case_is_taken_at_admission():
    groups, _ = make_groups(INTERLEAVED)
    group = admit(groups, make_plan(INTERLEAVED, 10, max_frames=3))
    # Ten prompt rows, three frames of seven rows, the end mark.
    assert group.max_rows == 3 * 7 + 1
    assert len(group.stream.sequences[0].pages) == -(-(10 + 22) // PAGE_SIZE)


def test_a_plan_may_say_how_many_rows_there_are():
    """Where some phase makes no frames, all positions would be taken."""
    groups, _ = make_groups(MIXED)
    plan = make_plan(MIXED, 9)
    n_left = 128 - 9
    for max_rows, expected in ((None, n_left), (12, 12), (2 * n_left, n_left)):
        command = OpenStream(
            stream_id=StreamId(1), plan=replace(plan, max_rows=max_rows), seed=0, asked_s=0.0
        )
        assert groups.make(command).max_rows == expected


def test_a_companion_comes_and_goes_as_often_as_the_phase_does():
    """Pages that one round gave to the cache were once written again by the next."""
    groups, runner = make_groups(MIXED)
    group = admit(groups, make_plan(MIXED, 9))
    stream = group.stream
    n_held = groups.allocator.n_used
    feed(group, 1)
    n_zero_rows = 0
    for round_idx in range(3):
        feed(group, 6)
        stream.phase_idx = AUDIO
        groups.update_guidance(group)
        assert stream.is_guided
        assert len(stream.sequences) == 2
        # As many zero rows as rows were fed before.
        assert stream.n_prompt_rows[1] == stream.sequences[0].n_rows
        own = stream.sequences[1].pages
        assert len(set(own) | set(stream.sequences[0].pages)) == len(own) + len(
            stream.sequences[0].pages
        )
        assert runner.bound[stream.slot, 1] == own
        assert not set(group.spare.pages) & set(own)
        # Pages of zero rows that the rounds before have filled are there already.
        assert stream.n_prefilled[1] == n_zero_rows // PAGE_SIZE * PAGE_SIZE
        n_zero_rows = stream.n_prompt_rows[1]
        # No page that will be written is in the cache.
        first_new = stream.n_prefilled[1] // PAGE_SIZE
        assert all(groups.allocator.n_refs(page) == 1 for page in own[first_new:])
        feed(group, 2)
        groups.share_prompts(group)
        stream.phase_idx = DRAIN if round_idx % 2 else TEXT
        groups.update_guidance(group)
        assert not stream.is_guided
        assert len(stream.sequences) == len(stream.n_prompt_rows) == len(group.keys) == 1
        groups.check()
    assert groups.allocator.n_used <= n_held + groups.pages.n_cached
    groups.close(group, is_suspect=False)
    groups.check()
    assert groups.allocator.n_used == groups.pages.n_cached
    groups.pages.clear()
    assert groups.allocator.n_used == 0


def test_a_stream_that_starts_guided_has_its_companion_from_the_start():
    groups, _ = make_groups(DELAYED)
    plan = make_plan(DELAYED, 9, companion=make_plan(DELAYED, 3))
    stream = admit(groups, plan).stream
    assert stream.n_prompt_rows == [9, 3]
    assert stream.is_guided


def test_guidance_is_off_at_scale_one_and_without_a_companion():
    groups, _ = make_groups(DELAYED)
    companion = make_plan(DELAYED, 3)
    for plan in (
        make_plan(DELAYED, 9),
        make_plan(DELAYED, 9, companion=companion, guidance_scale=1.0),
    ):
        group = admit(groups, plan)
        assert not group.is_ever_guided
        assert groups.demand(group).n_step_rows == 1


def test_a_shared_page_is_never_written_again():
    groups, _ = make_groups(INTERLEAVED)
    plan = make_plan(INTERLEAVED, 11, prefix_key="voice", prefix_rows=10)
    first = admit(groups, plan, 1)
    feed(first, 1)
    groups.share_prompts(first)
    second = groups.make(OpenStream(stream_id=StreamId(2), plan=plan, seed=0, asked_s=0.0))
    groups.admit(second)
    shared = set(first.stream.sequences[0].pages) & set(second.stream.sequences[0].pages)
    # Ten shareable rows are two full pages; the next row to run lies past them.
    assert len(shared) == 2
    assert second.stream.n_prefilled == [8]
    assert second.stream.sequences[0].pages[:2] == first.stream.sequences[0].pages[:2]
    groups.close(first, is_suspect=False)
    groups.close(second, is_suspect=False)
    groups.check()


def test_the_last_prompt_row_is_always_run():
    groups, _ = make_groups(INTERLEAVED)
    plan = make_plan(INTERLEAVED, 8, prefix_key="voice", prefix_rows=8)
    first = admit(groups, plan, 1)
    feed(first, 1)
    groups.share_prompts(first)
    second = groups.make(OpenStream(stream_id=StreamId(2), plan=plan, seed=0, asked_s=0.0))
    groups.admit(second)
    assert second.stream.n_prefilled == [4]


def test_suspect_pages_are_zeroed_but_shared_ones_are_not():
    groups, runner = make_groups(INTERLEAVED)
    plan = make_plan(INTERLEAVED, 11, prefix_key="voice", prefix_rows=10)
    group = admit(groups, plan)
    feed(group, 1)
    groups.share_prompts(group)
    pages = list(group.stream.sequences[0].pages)
    groups.close(group, is_suspect=True)
    assert sorted(runner.scrubbed) == sorted(pages[2:])


def test_settings_that_are_refused_take_nothing():
    groups, runner = make_groups(INTERLEAVED)
    group = groups.make(
        OpenStream(stream_id=StreamId(1), plan=make_plan(INTERLEAVED, 5), seed=0, asked_s=0.0)
    )
    runner.refuses = True
    with pytest.raises(StreamError):
        groups.admit(group)
    groups.check()
    assert groups.slots.n_used == 0
    assert groups.allocator.n_used == 0

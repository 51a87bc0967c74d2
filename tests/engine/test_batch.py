"""Index arrays: which row of a batch belongs to whom."""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import Prompt, build_decode, build_prefill, rows_of
from engine.kv_pages import PageTable
from engine.stream import Stream
from engine.types import StreamId
from models.base import PromptPlan

N_SLOTS = 10


def make_stream(
    slot: int, *n_prompt_rows: int, n_rows: int = 0, phase_idx: int = 0, **fields: object
) -> Stream:
    return Stream(
        stream_id=StreamId(100 + slot),
        asked_s=0.0,
        max_frames=9,
        n_prompt_rows=list(n_prompt_rows),
        slot=slot,
        n_rows=n_rows,
        phase_idx=phase_idx,
        **fields,
    )


def make_prompt(n_rows: int, first_id: int, positions: torch.Tensor | None = None) -> Prompt:
    ids = torch.arange(first_id, first_id + n_rows).unsqueeze(1).expand(-1, 2)
    plan = PromptPlan(
        ids=ids, state=torch.zeros(2, dtype=torch.int64), max_frames=1, positions=positions
    )
    return Prompt.of(plan)


def test_companions_follow_the_streams():
    plain = make_stream(3, 5, n_rows=2, sequences=[PageTable(n_rows=6)])
    guided = make_stream(
        1, 5, 2, n_rows=2, phase_idx=1, sequences=[PageTable(n_rows=7), PageTable(n_rows=4)]
    )
    guided.is_guided = True
    batch = build_decode([plain, guided], N_SLOTS)
    assert batch.rows.slots.tolist() == [3, 1]
    assert batch.rows.pairs.tolist() == [1]
    assert batch.rows.phases == (0, 1)
    assert batch.sequences.tolist() == [3, 1, N_SLOTS + 1]
    assert batch.n_before.tolist() == [6, 7, 4]


def test_a_companion_that_is_not_guided_now_takes_no_row():
    stream = make_stream(1, 5, 2, sequences=[PageTable(n_rows=7), PageTable(n_rows=2)])
    assert build_decode([stream], N_SLOTS).sequences.tolist() == [1]


def test_pieces_lie_one_after_another_and_name_who_is_finished():
    half = make_stream(0, 8)
    half.n_prefilled = [2]
    whole = make_stream(4, 3)
    batch = build_prefill(
        [(half, 0, 4), (whole, 0, 3)], [make_prompt(8, 100), make_prompt(3, 200)], N_SLOTS
    )
    assert [(p.sequence, p.first_row, p.n_rows, p.n_before) for p in batch.pieces] == [
        (0, 0, 4, 2),
        (4, 4, 3, 0),
    ]
    assert batch.ids[:, 0].tolist() == [102, 103, 104, 105, 200, 201, 202]
    assert batch.positions.tolist() == [2, 3, 4, 5, 0, 1, 2]
    assert batch.finished is not None
    assert batch.finished.slots.tolist() == [4]
    assert batch.ends.tolist() == [6]
    assert batch.embeds is None


def test_a_pair_is_finished_together():
    stream = make_stream(2, 4, 2)
    stream.is_guided = True
    other = make_stream(3, 1)
    prompts = [make_prompt(1, 1), make_prompt(4, 10), make_prompt(2, 20)]
    parts = [(other, 0, 1), (stream, 0, 4), (stream, 1, 2)]
    batch = build_prefill(parts, prompts, N_SLOTS)
    assert batch.finished is not None
    assert batch.finished.slots.tolist() == [3, 2]
    assert batch.finished.pairs.tolist() == [1]
    # Last rows of the streams, then of the companion.
    assert batch.ends.tolist() == [0, 4, 6]


def test_a_companion_that_comes_late_gives_no_row():
    stream = make_stream(2, 4, 6, n_rows=3)
    stream.n_prefilled = [4, 0]
    batch = build_prefill([(stream, 1, 6)], [Prompt.zeros(6, 2)], N_SLOTS)
    assert batch.finished is None
    assert batch.pieces[0].sequence == N_SLOTS + 2


def test_embeds_stand_where_their_mask_says():
    given = make_prompt(3, 10)
    embeds = torch.arange(12.0).view(3, 4)
    mask = np.array([True, False, True])
    with_embeds = Prompt(ids=given.ids, positions=given.positions, embeds=embeds, embed_mask=mask)
    first, second = make_stream(0, 2), make_stream(1, 3)
    second.n_prefilled = [1]
    batch = build_prefill(
        [(first, 0, 2), (second, 0, 2)], [make_prompt(2, 1), with_embeds], N_SLOTS
    )
    assert batch.embed_mask is not None
    assert batch.embeds is not None
    assert batch.embed_mask.tolist() == [False, False, False, True]
    assert torch.equal(batch.embeds[3], embeds[2])


def test_generated_positions_go_on_from_the_prompts_last():
    """Fault 17: the first generated row stood at L + 1 instead of L."""
    assert make_prompt(5, 0).position_shift == 0
    assert make_prompt(3, 0, torch.tensor([4, 5, 9])).position_shift == 7
    assert Prompt.zeros(6, 2).position_shift == 0


def test_phases_are_those_that_occur():
    streams = [make_stream(i, 1, phase_idx=p) for i, p in enumerate((2, 0, 2))]
    assert rows_of(streams).phases == (0, 2)

"""`advance` of each toy, row by row, against tables worked out by hand."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.base import SpeechModel
from models.layers.delay import NEVER, blank_outside, completed_frame, join_history
from models.spec import PHASE_COLUMN, PlanRequest
from models.toy import delayed, depth, interleaved, mixed, tone
from models.toy.base import BOS, EOS, PAD, TEXT_LOW
from tests.models.toy.reference import make_feed


@dataclass
class Table:
    """What a list of drawn rows led to; one entry a row."""

    rows: list[list[int]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    frames: list[list[int] | None] = field(default_factory=list)
    text_ids: list[int] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)


def advance_all(model: SpeechModel, request: PlanRequest, drawn: list[list[int]]) -> Table:
    """Advance one stream over `drawn`; `phases` are those after each row."""
    table, state = Table(), model.plan(request).state.unsqueeze(0)
    feed = make_feed(model, [], is_final=True)
    for ids in drawn:
        out = model.advance(state, torch.tensor([ids]), feed)
        state = out.state
        table.rows.append(out.rows[0].tolist())
        table.phases.append(model.spec.phases[int(state[0, PHASE_COLUMN])].name)
        table.frames.append(out.frames[0].tolist() if bool(out.emits) else None)
        table.text_ids.append(int(out.text_ids))
        table.finished.append(bool(out.is_finished))
    return table


def delayed_codes(lows: list[int], row: int) -> list[int]:
    """Every column draws code `row + 1`."""
    return [low + row + 1 for low in lows]


DELAYED_LOWS = [delayed.CODE_LOW + n * delayed.N_CODES for n in range(4)]


def test_delayed_warms_up_ends_and_drains():
    low0, low1, low2, low3 = DELAYED_LOWS
    drawn = [delayed_codes(DELAYED_LOWS, row) for row in range(6)]
    drawn[3][0] = EOS  # three frames
    drawn[4][0] = drawn[5][0] = PAD  # forced in the drain phase
    table = advance_all(delayed.load(), PlanRequest(text="x"), drawn)
    assert table.rows == [
        [low0 + 1, PAD, PAD, PAD],
        [low0 + 2, low1 + 2, PAD, PAD],
        [low0 + 3, low1 + 3, low2 + 3, PAD],
        [EOS, low1 + 4, low2 + 4, low3 + 4],
        [PAD, PAD, low2 + 5, low3 + 5],
        [PAD, PAD, PAD, low3 + 6],
    ]
    assert table.phases == ["audio", "audio", "audio", "drain", "drain", "drain"]
    assert table.frames == [None, None, None, [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]
    assert table.finished == [False, False, False, False, False, True]
    assert table.text_ids == [-1] * 6


def test_delayed_with_one_frame_ends_before_it_is_warm():
    low0, low1, low2, low3 = DELAYED_LOWS
    drawn = [delayed_codes(DELAYED_LOWS, row) for row in range(4)]
    drawn[1][0] = EOS
    table = advance_all(delayed.load(), PlanRequest(text="x"), drawn)
    assert table.rows == [
        [low0 + 1, PAD, PAD, PAD],
        [EOS, low1 + 2, PAD, PAD],
        [PAD, PAD, low2 + 3, PAD],
        [PAD, PAD, PAD, low3 + 4],
    ]
    assert table.frames == [None, None, None, [1, 2, 3, 4]]
    assert table.finished == [False, False, False, True]


def test_delayed_without_frames_gives_none():
    drawn = [delayed_codes(DELAYED_LOWS, row) for row in range(3)]
    drawn[0][0] = EOS
    table = advance_all(delayed.load(), PlanRequest(text="x"), drawn)
    assert table.frames == [None, None, None]
    assert table.rows[1:] == [[PAD] * 4] * 2
    assert table.finished == [False, False, True]


def test_mixed_goes_through_text_bridge_audio_and_drain():
    lows = [mixed.CODE_LOW + n * mixed.N_CODES for n in range(3)]
    letter_a, letter_b = TEXT_LOW + ord("a"), TEXT_LOW + ord("b")
    drawn = [
        [letter_a, PAD, PAD],
        [letter_b, PAD, PAD],
        [mixed.END_OF_TEXT, PAD, PAD],
        [mixed.AUDIO_MARK, PAD, PAD],
        *[delayed_codes(lows, row) for row in range(4)],
    ]
    drawn[6][0] = EOS  # two frames
    table = advance_all(mixed.load(), PlanRequest(text="x"), drawn)
    assert table.rows == [
        [letter_a, PAD, PAD],
        [letter_b, PAD, PAD],
        [mixed.END_OF_TEXT, PAD, PAD],
        [mixed.AUDIO_MARK, PAD, PAD],
        [lows[0] + 1, PAD, PAD],
        [lows[0] + 2, lows[1] + 2, PAD],
        [EOS, lows[1] + 3, lows[2] + 3],
        [PAD, PAD, lows[2] + 4],
    ]
    assert table.phases == [
        *("text", "text", "bridge", "audio", "audio", "audio", "drain", "drain"),
    ]
    assert table.frames == [*[None] * 6, [1, 2, 3], [2, 3, 4]]
    assert table.text_ids == [letter_a, letter_b, *[-1] * 6]
    assert table.finished == [False] * 7 + [True]


def test_interleaved_orders_the_codes_of_seven_rows_by_level():
    low, n = interleaved.CODE_LOW, interleaved.N_CODES
    drawn = [[low + slot * n + slot + 1] for slot in range(7)]
    drawn += [[low + slot * n + slot + 8] for slot in range(7)]
    table = advance_all(interleaved.load(), PlanRequest(text="x"), [*drawn, [EOS]])
    assert table.rows == [*drawn, [EOS]]
    first, second = [1, 2, 5, 3, 4, 6, 7], [8, 9, 12, 10, 11, 13, 14]
    assert table.frames == [*[None] * 6, first, *[None] * 6, second, None]
    assert table.finished == [False] * 14 + [True]


def test_depth_ends_at_the_frame_of_zeros_only():
    pad = [PAD]
    drawn = [[9, 5, 6, 7, 8], [9, 1, 0, 0, 0], [9, 0, 0, 0, 0]]
    table = advance_all(depth.load(), PlanRequest(text="x"), drawn)
    assert table.rows == [pad + row[1:] for row in drawn]
    assert table.frames == [[5, 6, 7, 8], [1, 0, 0, 0], None]
    assert table.finished == [False, False, True]


def test_tone_gives_its_pitch_until_the_end():
    table = advance_all(
        tone.load(), PlanRequest(text="x", voice="high"), [[tone.PITCH_LOW + 2], [EOS]]
    )
    assert table.frames == [[2], None]
    assert table.finished == [False, True]


@pytest.mark.parametrize("n_frames", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("delays", [(0, 1, 2, 3), (0, 0, 2), (0, 3, 1), (0,)])
def test_delay_is_undone_exactly(delays: tuple[int, ...], n_frames: int):
    """Write the delayed rows by the definition, read the frames back by the helpers."""
    depth_ = max(delays)
    frames = 1 + torch.arange(n_frames * len(delays)).view(n_frames, len(delays))
    steps = torch.tensor(delays)
    history = torch.zeros(1, depth_ * len(delays), dtype=torch.int64)
    read = []
    for row in range(n_frames + depth_):
        ids = [
            int(frames[row - delay, column]) if 0 <= row - delay < n_frames else 0
            for column, delay in enumerate(delays)
        ]
        past = join_history(history, torch.tensor([ids]))
        if row >= depth_:
            read.append(completed_frame(past, steps)[0])
        history = past[:, 1:].flatten(1)
    assert torch.equal(torch.stack(read), frames)


@settings(deadline=None)
@given(row=st.integers(0, 60), end=st.one_of(st.just(NEVER), st.integers(0, 60)))
def test_blanks_stand_exactly_outside_the_frames(row: int, end: int):
    delays = (0, 1, 3)
    ids = torch.tensor([[7, 8, 9]])
    out = blank_outside(ids, torch.tensor([row]), torch.tensor([end]), torch.tensor(delays), 0)
    expected = [
        id_ if 0 <= row - delay < end else 0 for id_, delay in zip((7, 8, 9), delays, strict=True)
    ]
    assert out[0].tolist() == expected


def test_bos_is_the_last_prompt_row_of_the_models_that_only_speak():
    for model in (interleaved.load(), depth.load(), delayed.load(), tone.load()):
        assert int(model.plan(PlanRequest(text="x")).ids[-1, 0]) == BOS

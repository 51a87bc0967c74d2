"""A spec refuses to contradict itself."""

from dataclasses import FrozenInstanceError, replace

import pytest

from models.errors import SpecError
from models.spec import (
    MAX_REPETITION_WINDOW,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    GuidanceSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)
from models.toy import delayed, depth, mixed


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_window": -1},
        {"repetition_window": MAX_REPETITION_WINDOW + 1},
        {"redraw_window": -1},
        {"redraw_window": MAX_REPETITION_WINDOW + 1},
        {"redraw_count": 0},
    ],
)
def test_sampling_outside_its_range_is_refused_by_name(fields: dict[str, float]):
    (name,) = fields
    with pytest.raises(SpecError, match=name):
        SamplingParams(**fields)


def test_sampling_takes_the_ends_of_its_ranges():
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=1.0, repetition_window=0)
    SamplingParams(repetition_window=MAX_REPETITION_WINDOW)


@pytest.mark.parametrize(
    ("rate_hz", "n_samples", "frame_rate_hz"),
    [(16_000, 320, 50.0), (22_050, 441, 50.0), (24_000, 1920, 12.5), (44_100, 512, 86.1328125)],
)
def test_frame_rates_agree_with_the_sample_rate(rate_hz: int, n_samples: int, frame_rate_hz: float):
    frame = FrameSpec(
        n_codebooks=1,
        frame_rate_hz=frame_rate_hz,
        sample_rate_hz=rate_hz,
        samples_per_frame=n_samples,
    )
    assert frame.frame_s == pytest.approx(1 / frame_rate_hz)
    with pytest.raises(SpecError, match="frame_rate_hz"):
        replace(frame, sample_rate_hz=48_000)


@pytest.mark.parametrize("chunk_frames", [(), (0, 1), (2, 1), (1, 1), (-1,)])
def test_a_ramp_must_ascend_from_one_or_more(chunk_frames: tuple[int, ...]):
    with pytest.raises(SpecError, match="chunk_frames"):
        CodecSpec(chunk_frames=chunk_frames)


@pytest.mark.parametrize("first_frames", [(0, 1), (2, 1), (1, 1)])
def test_so_must_that_of_a_first_call(first_frames: tuple[int, ...]):
    with pytest.raises(SpecError, match="first_frames"):
        CodecSpec(chunk_frames=(1, 2), first_frames=first_frames)


def test_a_ramp_must_have_room_for_a_last_call():
    """Of 24 frames none could go: they fill no call, and leave none of the room."""
    with pytest.raises(SpecError, match=r"chunk_frames \(25,\)"):
        CodecSpec(chunk_frames=(25,), last_room_frames=3)
    with pytest.raises(SpecError, match=r"first_frames \(13,\)"):
        CodecSpec(chunk_frames=(25, 50), first_frames=(13,), last_room_frames=3)


def test_a_first_call_has_the_sizes_of_all_calls_where_it_has_none_of_its_own():
    plain = CodecSpec(chunk_frames=(1, 4))
    grid = CodecSpec(chunk_frames=(25, 50), first_frames=(13, 38), last_room_frames=3)
    assert plain.sizes(0) == plain.sizes(1) == plain.all_sizes == (1, 4)
    assert (grid.sizes(0), grid.sizes(1)) == ((13, 38), (25, 50))
    assert grid.all_sizes == (13, 25, 38, 50)


def test_a_phase_must_state_every_column():
    short = PhaseSpec(name="audio", columns=(PhaseColumn(fill="sampled"),))
    with pytest.raises(SpecError, match="'audio' must state all 4 columns"):
        replace(delayed.SPEC, phases=(short,), guidance=None)


def test_guidance_must_name_phases_and_columns_that_exist():
    def guided(phase: str, column: str) -> GuidanceSpec:
        return GuidanceSpec(
            scale=2.0, phases=(phase,), columns=(column,), companion="own_rows", entry="start"
        )

    with pytest.raises(SpecError, match="song"):
        replace(delayed.SPEC, guidance=guided("song", "codebook0"))
    with pytest.raises(SpecError, match="codebook9"):
        replace(delayed.SPEC, guidance=guided("audio", "codebook9"))


def test_depth_must_name_columns_that_exist():
    assert depth.SPEC.depth is not None
    with pytest.raises(SpecError, match="codebook9"):
        replace(depth.SPEC, depth=replace(depth.SPEC.depth, columns=("codebook1", "codebook9")))


def test_columns_and_phases_are_found_by_name():
    assert depth.SPEC.column_idx("codebook2") == 3
    assert mixed.SPEC.phase_idx("drain") == 3
    assert depth.SPEC.depth is not None
    assert depth.SPEC.depth.n_positions == 4


def test_backbone_columns_are_those_sampled_in_some_phase():
    assert depth.SPEC.backbone_columns == (1,)
    assert delayed.SPEC.backbone_columns == (0, 1, 2, 3)
    assert mixed.SPEC.backbone_columns == (0, 1, 2)


def test_a_column_counts_its_ids_and_is_frozen():
    column = ColumnSpec(name="codes", role="acoustic", ids=(275, 291), pad_id=0)
    assert column.n_ids == 16
    with pytest.raises(FrozenInstanceError):
        column.pad_id = 1  # type: ignore[misc]  # the point of the test

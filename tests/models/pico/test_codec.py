"""The detokenizer as the engine uses it: sample counts, chunks, batches, flush, speed, state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.models.pico.harness import decode_chunks, random_frames, tiny_model

# Rounding of float32 convolutions in another order; audio of these weights has unit size.
ROUNDING = 5e-6


def fresh_state(model, n_rows: int) -> dict[str, Tensor]:
    return {
        part.name: torch.zeros(n_rows, *part.shape, dtype=getattr(torch, part.dtype))
        for part in model.spec.codec.state
    }


def call(model, frames: Tensor, n_valid: list[int], state, is_last: list[bool]):
    rows = len(n_valid)
    is_first = torch.zeros(rows, dtype=torch.bool)
    return model.decode(frames, torch.tensor(n_valid), state, is_first, torch.tensor(is_last))


def test_lookahead_is_what_the_first_call_holds_back() -> None:
    model, _ = tiny_model()
    held = model.spec.codec.lookahead_frames
    first_size = next(size for size in model.spec.codec.chunk_frames if size > held)
    frames = random_frames(model.config, first_size)[None]
    decoded = call(model, frames, [first_size], fresh_state(model, 1), [False])
    n_samples = int(decoded.n_samples)
    assert held == 5
    assert (first_size - held) * 1024 <= n_samples < (first_size - held + 1) * 1024
    # Two steps of the post-net and 2582 samples of the vocoder, see facts in FORMAT.md.
    assert n_samples == first_size * 1024 - 2 * 1024 - 2582


@pytest.mark.parametrize("n_steps", [1, 2, 5, 6, 17])
@pytest.mark.parametrize("speed", [500, 1000, 1300, 2000])
def test_every_cut_gives_the_same_audio_of_exact_length(n_steps: int, speed: int) -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, n_steps)
    whole = decode_chunks(model, [frames], [[32]], [speed])[0]
    assert len(whole) == -(-n_steps * 4 * 1000 // speed) * 256
    for cuts in ([1], [6, 1, 2, 4, 8], [8]):
        cut = decode_chunks(model, [frames], [cuts], [speed])[0]
        torch.testing.assert_close(cut, whole, rtol=0, atol=ROUNDING)


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    """Streams of other lengths, speeds, chunk sizes, firsts and lasts share calls."""
    model, _ = tiny_model()
    lengths, speeds = [9, 14, 3, 11], [1000, 700, 1000, 1900]
    streams = [random_frames(model.config, n, seed=n) for n in lengths]
    cuts = [[2], [6, 2], [4, 2], [1, 2]]
    together = decode_chunks(model, streams, cuts, speeds)
    for stream, cut, speed, heard in zip(streams, cuts, speeds, together, strict=True):
        alone = decode_chunks(model, [stream], [cut], [speed])[0]
        torch.testing.assert_close(heard, alone, rtol=0, atol=ROUNDING)


def test_a_batch_beyond_one_group_equals_its_rows() -> None:
    """Rows of other lengths end in other groups, which give PCM of other widths."""
    model, _ = tiny_model()
    frames = torch.stack([random_frames(model.config, 8, seed=n) for n in range(5)])
    n_valid, is_last = [8, 8, 8, 3, 8], [False, True, False, True, False]
    state = fresh_state(model, 5)
    together = call(model, frames, n_valid, state, is_last)
    for row in range(5):
        own = {name: part[row : row + 1] for name, part in state.items()}
        alone = call(model, frames[row : row + 1], n_valid[row : row + 1], own, [is_last[row]])
        n_samples = int(alone.n_samples)
        assert n_samples == int(together.n_samples[row])
        torch.testing.assert_close(
            together.pcm[row, :n_samples], alone.pcm[0, :n_samples], rtol=0, atol=ROUNDING
        )
        assert torch.equal(together.state["clock"][row], alone.state["clock"][0])


def test_an_empty_last_chunk_flushes_what_was_held_back() -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, 8)[None]
    state, pcm = fresh_state(model, 1), []
    for n_valid, is_last in ((8, False), (0, True)):
        decoded = call(model, frames, [n_valid], state, [is_last])
        state = decoded.state
        pcm.append(decoded.pcm[0, : int(decoded.n_samples)])
    whole = decode_chunks(model, [frames[0]], [[8]])[0]
    torch.testing.assert_close(torch.cat(pcm), whole, rtol=0, atol=ROUNDING)


def test_a_stream_of_no_frames_gives_no_samples() -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, 1)[None]
    assert int(call(model, frames, [0], fresh_state(model, 1), [True]).n_samples) == 0


def test_padding_frames_are_not_heard() -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, 4)[None]
    other = frames.clone()
    other[:, 3:] = random_frames(model.config, 1, seed=5)
    state = fresh_state(model, 1)
    first = call(model, frames, [3], state, [True])
    second = call(model, other, [3], state, [True])
    n_samples = int(first.n_samples)
    assert n_samples == 3 * 1024
    assert torch.equal(first.pcm[0, :n_samples], second.pcm[0, :n_samples])


def test_fixed_shapes_give_the_same_audio() -> None:
    """The form without host reads, for accelerators, against the one that follows its rows."""
    model, _ = tiny_model()
    streams = [random_frames(model.config, n, seed=n) for n in (7, 12)]
    cuts, speeds = [[6, 2], [6, 2]], [1000, 600]
    dynamic = decode_chunks(model, streams, cuts, speeds)
    model.detokenizer.is_static = True
    fixed = decode_chunks(model, streams, cuts, speeds)
    for one, other in zip(dynamic, fixed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=ROUNDING)


def test_decode_changes_neither_frames_nor_state() -> None:
    model, _ = tiny_model()
    frames = random_frames(model.config, 4)[None].repeat(2, 1, 1)
    state = call(model, frames, [4, 4], fresh_state(model, 2), [False, False]).state
    before = {name: tensor.clone() for name, tensor in state.items()} | {"f": frames.clone()}
    call(model, frames, [4, 2], state, [False, True])
    assert all(torch.equal(before[name], state[name]) for name in state)
    assert torch.equal(before["f"], frames)


def test_audio_stays_within_full_scale() -> None:
    model, _ = tiny_model()
    model.detokenizer.vocoder.last.weight.mul_(50)
    pcm = decode_chunks(model, [random_frames(model.config, 6)], [[8]])[0]
    assert pcm.abs().max() <= 1.0

"""Chunked detokenizing equals one call bit for bit, and every way to do it wrong is audible."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.base import SpeechModel
from models.spec import PlanRequest
from models.toy import delayed, depth, interleaved, mixed, tone
from models.toy.catalogue import TOYS
from models.toy.codec import N_TAPS
from tests.models.toy.reference import (
    codec_state,
    decode_chunks,
    decode_whole,
    with_context,
)

MODELS: dict[str, SpeechModel] = {
    name: load() for name, (_, load) in TOYS.items() if name != "toy-faulty"
}
TRUE, FALSE = torch.tensor([True]), torch.tensor([False])


def random_codes(model: SpeechModel, n_frames: int, seed: int = 0) -> Tensor:
    n_codes = 3 if model.spec.name == "toy-tone" else 16
    shape = (n_frames, model.spec.frame.n_codebooks)
    return torch.randint(0, n_codes, shape, generator=torch.Generator().manual_seed(seed))


def loud_plan(model: SpeechModel):
    if model.spec.name == "toy-delayed":
        return model.plan(PlanRequest(text="a", voice="loud"))
    return None


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40, deadline=None)
@given(choices=st.lists(st.integers(0, 7), max_size=12), n_frames=st.integers(0, 40))
def test_any_chunking_equals_one_call(name: str, choices: list[int], n_frames: int):
    model = MODELS[name]
    codec = model.spec.codec
    sizes = [codec.chunk_frames[choice % len(codec.chunk_frames)] for choice in choices]
    codes = random_codes(model, n_frames)
    plan = loud_plan(model)
    streamed = torch.cat(decode_chunks(model, codes, sizes, plan))
    assert len(streamed) == n_frames * model.spec.frame.samples_per_frame
    whole = decode_whole(model, codes, plan)
    if name == "toy-tone":
        # 1e-5: the sine's phase is carried in float32, at most 40 times.
        torch.testing.assert_close(streamed, whole, atol=1e-5, rtol=0)
    else:
        # Exact: the filter adds its taps in a fixed order whatever the length.
        assert torch.equal(streamed, whole)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "toy-tone"])
def test_one_call_equals_the_formula_in_numpy(name: str):
    model = MODELS[name]
    codec, n_samples = model.codec, model.spec.frame.samples_per_frame
    codes = random_codes(model, 6)
    table, taps = codec.table.double().numpy(), codec.taps.double().numpy()
    wave = np.stack([sum(table[q, code] for q, code in enumerate(frame)) for frame in codes])
    if model.spec.codec.lookahead_frames:
        wave[:-1] = wave[:-1] + 0.5 * wave[1:].copy()
    expected = np.convolve(wave.ravel(), taps)[: 6 * n_samples]
    n_context = model.spec.codec.left_context_frames
    if n_context:
        expected[n_context * n_samples :] += 0.25 * wave[: 6 - n_context].ravel()
    # 1e-6: the codec works in float32, the formula in float64.
    np.testing.assert_allclose(
        decode_whole(model, codes, loud_plan(model)).numpy(), expected, atol=1e-6
    )


def test_the_tone_is_the_sine_of_its_pitch():
    model = MODELS["toy-tone"]
    pcm = torch.cat(decode_chunks(model, torch.full((5, 1), 2), [1, 2])).double()
    at = torch.arange(1, len(pcm) + 1, dtype=torch.float64)
    expected = tone.AMPLITUDE * torch.sin(2 * math.pi * 440.0 * at / 24_000)
    # 1e-5: the phase is carried in float32.
    torch.testing.assert_close(pcm, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_samples_stay_in_range_and_silence_follows_the_real_ones(name: str):
    model = MODELS[name]
    size = model.spec.codec.chunk_frames[-1]
    frames = with_context(model, random_codes(model, 1), 0, size)
    state = codec_state(model, loud_plan(model))
    out = model.decode(frames, torch.tensor([1]), state, TRUE, TRUE)
    assert int(out.n_samples) == model.spec.frame.samples_per_frame
    assert out.pcm.dtype == torch.float32
    assert out.pcm.abs().max() <= 1
    assert out.pcm.abs().max() > 0.01
    assert out.pcm[0, int(out.n_samples) :].abs().max() == 0


@pytest.mark.parametrize("name", MODELS)
def test_look_ahead_holds_frames_back_until_the_end(name: str):
    model = MODELS[name]
    spec, size = model.spec, model.spec.codec.chunk_frames[-1]
    pieces = decode_chunks(model, random_codes(model, 2 * size + 1), [size, size])
    n_frames = [len(piece) / spec.frame.samples_per_frame for piece in pieces]
    held = spec.codec.lookahead_frames
    assert n_frames == [size - held, size, 1 + held]


@pytest.mark.parametrize("name", ["toy-depth", "toy-audio-in"])
def test_a_flush_without_new_frames_gives_the_held_one(name: str):
    model = MODELS[name]
    codes = random_codes(model, model.spec.codec.chunk_frames[0])
    pieces = decode_chunks(model, codes, [len(codes)])
    assert len(pieces) == 2
    assert len(pieces[1]) == model.spec.frame.samples_per_frame
    assert torch.equal(torch.cat(pieces), decode_whole(model, codes))


@pytest.mark.parametrize("name", MODELS)
def test_streams_of_one_call_do_not_touch_each_other(name: str):
    """One call with a first, a middle and a last chunk equals three calls of one."""
    model = MODELS[name]
    size = model.spec.codec.chunk_frames[-1]
    rows = []
    for seed, (is_first, is_last, n_valid) in enumerate(
        [(True, False, size), (False, False, size), (False, True, size - 1)]
    ):
        state = codec_state(model, loud_plan(model))
        codes = random_codes(model, 2 * size, seed)
        if not is_first:
            frames = with_context(model, codes, 0, size)
            state = model.decode(frames, torch.tensor([size]), state, TRUE, FALSE).state
        frames = with_context(model, codes, 0 if is_first else size, size)
        flags = (torch.tensor([n_valid]), state, torch.tensor([is_first]), torch.tensor([is_last]))
        rows.append((frames, *flags))
    singles = [model.decode(*row) for row in rows]
    joined = model.decode(
        torch.cat([row[0] for row in rows]),
        torch.cat([row[1] for row in rows]),
        {name: torch.cat([row[2][name] for row in rows]) for name in rows[0][2]},
        torch.cat([row[3] for row in rows]),
        torch.cat([row[4] for row in rows]),
    )
    for at, single in enumerate(singles):
        assert torch.equal(joined.pcm[at], single.pcm[0])
        assert joined.n_samples[at] == single.n_samples[0]
        for key, value in single.state.items():
            assert torch.equal(joined.state[key][at], value[0])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "toy-tone"])
def test_every_code_is_heard(name: str):
    """Neither the first nor the last frame may be lost without a trace."""
    model = MODELS[name]
    plan = loud_plan(model)
    codes = random_codes(model, 5) % 15 + 1
    plain = decode_whole(model, codes, plan)
    for frame in range(5):
        for codebook in range(codes.shape[1]):
            changed = codes.clone()
            changed[frame, codebook] = codes[frame, codebook] % 15 + 1
            assert not torch.equal(decode_whole(model, changed, plan), plain)


def test_a_lost_state_is_heard():
    model = MODELS["toy-mixed"]
    codes, size = random_codes(model, 10), 5
    first = with_context(model, codes, 0, size)
    second = with_context(model, codes, size, size)
    n_valid = torch.tensor([size])
    zero = codec_state(model)
    state = model.decode(first, n_valid, zero, TRUE, FALSE).state
    right = model.decode(second, n_valid, state, FALSE, TRUE).pcm
    wrong = model.decode(second, n_valid, zero, FALSE, TRUE).pcm
    assert not torch.equal(right[:, : N_TAPS - 1], wrong[:, : N_TAPS - 1])


@pytest.mark.parametrize("place", range(interleaved.SPEC.codec.left_context_frames))
def test_missing_context_is_heard(place: int):
    model = MODELS["toy-interleaved"]
    codes = random_codes(model, 8) % 15 + 1
    frames = with_context(model, codes, 4, 4)
    spoilt = frames.clone()
    spoilt[0, place] = 0
    args = (torch.tensor([4]), {}, FALSE, TRUE)
    assert not torch.equal(model.decode(frames, *args).pcm, model.decode(spoilt, *args).pcm)


def test_silent_codes_may_stand_for_context_before_the_start():
    model = MODELS["toy-interleaved"]
    frames = with_context(model, random_codes(model, 4), 0, 4)
    assert frames[0, 0, 0] == -1
    args = (torch.tensor([4]), {}, TRUE, TRUE)
    expected = model.decode(frames, *args).pcm
    assert torch.equal(model.decode(frames.clamp(min=0), *args).pcm, expected)


def test_the_plan_seeds_the_loudness():
    model = MODELS["toy-delayed"]
    codes = random_codes(model, 9)
    loud = model.plan(PlanRequest(text="a", voice="loud"))
    soft = model.plan(PlanRequest(text="a", voice="soft"))
    heard_loud = torch.cat(decode_chunks(model, codes, [4, 4], loud))
    heard_soft = torch.cat(decode_chunks(model, codes, [4, 4], soft))
    assert torch.equal(heard_soft, 0.5 * heard_loud)
    assert decode_whole(model, codes).abs().max() == 0  # a lost seed is silence


def test_sample_rates_differ_and_none_is_assumed():
    specs = (interleaved.SPEC, delayed.SPEC, depth.SPEC, mixed.SPEC, MODELS["toy-audio-in"].spec)
    rates = {spec.frame.sample_rate_hz for spec in specs}
    assert rates == {16_000, 22_050, 24_000, 44_100}

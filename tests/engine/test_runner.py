"""The runner through the loop: what streams say, against a plain engine and against each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.config import EngineConfig
from engine.row_step import Guide, merge_guidance
from engine.types import StreamId
from models.base import PromptPlan, SpeechModel
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan
from tests.models.toy import reference

SPEAKING = ("toy-tone", "toy-interleaved", "toy-delayed", "toy-depth", "toy-mixed", "toy-audio-in")
ALL = (*SPEAKING, "toy-streamed")


def same_pcm(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order in which a codec adds up; another code moves samples by 1e-3."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def decode_whole(model: SpeechModel, plan: PromptPlan, codes: Tensor) -> np.ndarray:
    """One-shot decoding: all frames in one call that is first and last."""
    spec = model.spec
    if len(codes) == 0:
        return np.zeros(0, dtype=np.float32)
    context = torch.full((spec.codec.left_context_frames, spec.frame.n_codebooks), -1)
    state = {
        part.name: torch.zeros(1, *part.shape, dtype=getattr(torch, part.dtype))
        for part in spec.codec.state
    }
    for name, seed in plan.codec_state.items():
        state[name][0] = seed
    true = torch.tensor([True])
    out = model.decode(
        torch.cat([context, codes]).unsqueeze(0), torch.tensor([len(codes)]), state, true, true
    )
    return out.pcm[0, : int(out.n_samples)].numpy()


@pytest.fixture(autouse=True)
def likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "sample", lambda logits, generator: int(logits.argmax()))


def unguided(model: SpeechModel, plan: PromptPlan) -> PromptPlan:
    return replace(plan, guidance_scale=1.0) if model.spec.guidance is not None else plan


@pytest.mark.parametrize("name", ALL)
def test_greedy_streams_say_what_the_plain_engine_says(name):
    """Every kind in the contract against whole-sequence attention in lists, one-shot decoded.

    So chunked streaming equals one-shot decoding, positions go on without a gap (fault 17), and no
    row is sampled after the end (fault 23), for streams that run side by side in one batch.
    """
    model = load_toy(name)
    engine = Engine(model)
    plans = [unguided(model, make_plan(model, text, is_greedy=True)) for text in TEXTS]
    got = engine.speak(plans, seeds=range(len(plans)))
    for idx, (plan, pcm) in enumerate(zip(plans, got, strict=True)):
        spoken = reference.speak(model, plan)
        assert spoken.is_finished
        expected = decode_whole(model, plan, spoken.codes)
        assert len(expected) > 0
        same_pcm(pcm, expected)
        assert engine.text(StreamId(idx + 1)) == model.detokenize_text(spoken.text_ids)
        assert engine.finished(StreamId(idx + 1)).n_frames == len(spoken.frames)
    engine.check_is_empty()


@pytest.mark.parametrize("name", ALL)
def test_a_stream_in_a_mixed_batch_equals_the_stream_alone(name):
    """Faults 14 and 21: output depended on who else was in the batch."""
    model = load_toy(name)
    plans = [make_plan(model, text) for text in TEXTS]
    together = Engine(model).speak(plans, seeds=range(len(plans)))
    for seed, plan in enumerate(plans):
        engine = Engine(model)
        alone = engine.speak([plan], seeds=[seed])[0]
        same_pcm(alone, together[seed])


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-mixed", "toy-delayed"])
def test_seeds_make_takes_differ(name):
    model = load_toy(name)
    plan = make_plan(model, "hello there")
    first, second, again = Engine(model).speak([plan] * 3, seeds=[1, 2, 1])
    assert not np.array_equal(first, second)
    same_pcm(first, again)


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-delayed", "toy-audio-in"])
@pytest.mark.parametrize("rows_per_step", [2, 3, 17])
def test_a_prompt_in_pieces_equals_the_whole_prompt(name, rows_per_step):
    """Fault 4: prompts beyond a fixed number of rows ended the engine."""
    model = load_toy(name)
    plans = [make_plan(model, text) for text in TEXTS[:2]]
    whole = Engine(model).speak(plans, seeds=[1, 2])
    cut = Engine(model, replace(CONFIG, prefill_rows_per_step=rows_per_step, page_size=2))
    for expected, got in zip(whole, cut.speak(plans, seeds=[1, 2]), strict=True):
        same_pcm(got, expected)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_page_size_changes_nothing(page_size):
    model = load_toy("toy-mixed")
    plans = [make_plan(model, text) for text in TEXTS]
    expected = Engine(model).speak(plans, seeds=[1, 2, 3, 4])
    got = Engine(model, replace(CONFIG, page_size=page_size)).speak(plans, seeds=[1, 2, 3, 4])
    for one, other in zip(got, expected, strict=True):
        same_pcm(one, other)


# Guidance.


class GuidedByHand:
    """A pair as two plain sequences, merged by hand, greedily."""

    def __init__(self, model: SpeechModel, plan: PromptPlan) -> None:
        guidance = model.spec.guidance
        assert guidance is not None
        self.model, self.plan, self.guidance = model, plan, guidance
        scale = plan.guidance_scale
        self.scale = guidance.scale if scale is None else scale
        self.guided = {model.spec.phase_idx(name) for name in guidance.phases}

    def speak(self) -> reference.Spoken:
        model, plan = self.model, self.plan
        stream = reference.Stream(model, plan)
        hand = self
        companion: reference.Stream | None = None
        n_positions = len(plan.ids)
        phase = int(plan.state[0])
        if phase in self.guided:
            companion = self._companion(n_positions)
        plain_heads = model.heads

        def merged_heads(hidden: Tensor) -> list[Tensor]:
            conditional = plain_heads(hidden)
            if companion is None:
                return conditional
            unconditional = plain_heads(companion.hidden)
            return [
                u + hand.scale * (c - u) for c, u in zip(conditional, unconditional, strict=True)
            ]

        model.heads = merged_heads
        try:
            while stream.step():
                phase = int(stream.state[0, 0])
                rows = torch.tensor([stream.spoken.rows[-1]])
                is_guided = phase in self.guided
                if is_guided and companion is None:
                    # All rows before the one that was just fed.
                    companion = self._companion(stream.n_positions - 1)
                if not is_guided:
                    companion = None
                if companion is not None:
                    x = model.embed(rows, stream.state[:, 0])
                    companion.hidden = companion._forward(x)
        finally:
            del model.heads
        return stream.spoken

    def _companion(self, n_rows: int) -> reference.Stream:
        if self.plan.companion is not None:
            return reference.Stream(self.model, self.plan.companion)
        zeros = torch.zeros((n_rows, self.model.spec.n_columns), dtype=torch.int64)
        return reference.Stream(self.model, replace(self.plan, ids=zeros, embeds=None))


@pytest.mark.parametrize("name", ["toy-delayed", "toy-mixed"])
def test_a_guided_pair_equals_two_sequences_merged_by_hand(name):
    model = load_toy(name)
    plans = [make_plan(model, text, is_greedy=True) for text in TEXTS]
    engine = Engine(model)
    got = engine.speak(plans, seeds=[0] * len(plans))
    for plan, pcm in zip(plans, got, strict=True):
        spoken = GuidedByHand(model, plan).speak()
        same_pcm(pcm, decode_whole(model, plan, spoken.codes))
    engine.check_is_empty()


def test_guidance_changes_what_is_said():
    """Otherwise the tests above would prove nothing."""
    for name in ("toy-delayed", "toy-mixed"):
        model = load_toy(name)
        plan = make_plan(model, TEXTS[1], is_greedy=True)
        guided, plain = Engine(model).speak([plan, unguided(model, plan)], seeds=[0, 0])
        assert not np.array_equal(guided, plain)


@pytest.mark.parametrize("name", ["toy-delayed", "toy-mixed"])
def test_scale_one_equals_no_guidance_and_takes_no_second_row(name):
    model = load_toy(name)
    plan = make_plan(model, TEXTS[0])
    engine = Engine(model)
    stream_id = engine.open(replace(plan, guidance_scale=1.0), seed=5)
    engine.run()
    assert engine.loop.metrics.decode_rows.largest == 1
    bare = replace(plan, guidance_scale=1.0, companion=None)
    expected = Engine(model).speak([bare], seeds=[5])[0]
    same_pcm(engine.pcm(stream_id), expected)


def test_a_pair_costs_two_rows_in_guided_phases_only():
    model = load_toy("toy-mixed")
    engine = Engine(model)
    engine.open(make_plan(model, TEXTS[0], reply_letters=5))
    decode, total = [], engine.loop.metrics.decode_rows
    n_before = 0.0
    while engine.step() is not None:
        if total.sum > n_before:
            decode.append(total.sum - n_before)
        n_before = total.sum
    n_frames = len(TEXTS[0])
    # Text, its end and the bridge alone; then pairs while the audio lasts; then the drain alone.
    first_pair, last_pair = decode.index(2), len(decode) - 1 - decode[::-1].index(2)
    assert set(decode[:first_pair]) == {1}
    assert set(decode[first_pair : last_pair + 1]) == {2}
    assert set(decode[last_pair + 1 :]) == {1}
    assert last_pair - first_pair + 1 == n_frames + 1
    engine.check_is_empty()


def test_merging_takes_raw_logits():
    raw = torch.tensor([[1.0, 2.0], [3.0, 5.0], [1.0, 1.0]])
    guide = Guide(rows=torch.tensor([1]), scale=torch.tensor([[2.0]]))
    assert merge_guidance(raw, guide, 2).tolist() == [[1.0, 2.0], [5.0, 9.0]]
    assert merge_guidance(raw, None, 2).tolist() == [[1.0, 2.0], [3.0, 5.0]]


def test_a_padded_pair_changes_nothing():
    """In a bucket every stream has a companion row; where it has no companion, that is noise."""
    raw = torch.tensor([[1.0, 2.0], [3.0, 5.0], [math.nan, 1.0], [1.0, 1.0]])
    guide = Guide(
        rows=torch.tensor([0, 1]),
        scale=torch.tensor([[2.0], [2.0]]),
        is_real=torch.tensor([[False], [True]]),
    )
    assert merge_guidance(raw, guide, 2).tolist() == [[1.0, 2.0], [5.0, 9.0]]


# Shared prefixes.


def test_streams_of_one_voice_share_their_prefix_pages():
    model = load_toy("toy-interleaved")
    plans = [make_plan(model, text) for text in TEXTS]
    expected = [Engine(model).speak([plan], seeds=[3])[0] for plan in plans]
    engine = Engine(model)
    first = engine.speak(plans[:1], seeds=[3])
    n_rows_before = engine.loop.metrics.prefill_rows.sum
    rest = engine.speak(plans[1:], seeds=[3, 3, 3])
    n_saved = sum(len(plan.ids) for plan in plans[1:]) - (
        engine.loop.metrics.prefill_rows.sum - n_rows_before
    )
    # The voice has 40 rows: two full pages of 16.
    assert n_saved == 3 * 32
    for got, wanted in zip([*first, *rest], expected, strict=True):
        same_pcm(got, wanted)
    engine.check_is_empty()


def test_other_content_under_the_same_key_is_not_shared():
    model = load_toy("toy-interleaved")
    plan = make_plan(model, TEXTS[0])
    other_ids = plan.ids.clone()
    other_ids[1, 0] += 1
    other = replace(plan, ids=other_ids)
    expected = Engine(model).speak([other], seeds=[3])[0]
    engine = Engine(model)
    engine.speak([plan], seeds=[3])
    same_pcm(engine.speak([other], seeds=[3])[0], expected)


def test_zero_companions_share_their_pages():
    model = load_toy("toy-mixed")
    plan = make_plan(model, TEXTS[1], reply_letters=30)
    engine = Engine(model)
    first = engine.speak([plan], seeds=[3])[0]
    n_before = engine.loop.metrics.prefill_rows.sum
    second = engine.speak([plan], seeds=[3])[0]
    n_second = engine.loop.metrics.prefill_rows.sum - n_before
    # The letters, their end and the bridge were generated; the bridge row is fed to both.
    n_companion = len(plan.ids) + 30 + 1
    assert n_second == len(plan.ids) + n_companion % CONFIG.page_size
    same_pcm(first, second)
    engine.check_is_empty()


# Streamed text.


@given(cuts=st.lists(st.integers(0, 20), max_size=4), gaps=st.integers(0, 30))
@settings(max_examples=12, deadline=None)
def test_text_split_anywhere_says_the_same(cuts, gaps):
    """Fault 22: text that came between two moments was dropped."""
    model = load_toy("toy-streamed")
    text = "streamed text in bits"
    expected = Engine(model).speak([make_plan(model, text)], seeds=[4])[0]
    edges = [0, *sorted(cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    plan = make_plan(model, parts[0], is_text_final=False)
    engine = Engine(model)
    stream_id = engine.open(plan, seed=4)
    for part in parts[1:]:
        for _ in range(gaps):
            engine.step()
        engine.extend(stream_id, model.extend(plan, part, is_final=False).tolist(), is_final=False)
    engine.run()
    engine.extend(stream_id, [], is_final=True)
    engine.run()
    same_pcm(engine.pcm(stream_id), expected)
    assert engine.finished(stream_id).reason == "stop"
    engine.check_is_empty()


def test_a_starved_stream_waits_without_steps_and_can_be_aborted():
    """Fault 12: a stream whose text never ended was neither finished nor freed."""
    model = load_toy("toy-streamed")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, "ab", is_text_final=False), seed=4)
    engine.run()
    n_steps = engine.loop.stats.n_steps
    assert engine.loop.step() is None
    assert engine.loop.stats.n_steps == n_steps
    assert engine.loop.stats.n_active == 1
    engine.abort(stream_id)
    engine.step()
    assert engine.finished(stream_id).reason == "aborted"
    engine.check_is_empty()


def test_text_beyond_the_capacity_fails_that_stream():
    model = load_toy("toy-streamed")
    engine = Engine(model)
    stream_id = engine.open(make_plan(model, "ab", is_text_final=False))
    other = engine.open(make_plan(model, "other"))
    engine.step()
    engine.extend(stream_id, [5] * model.spec.text_capacity, is_final=True)
    engine.run()
    assert engine.failed(stream_id).code == "prompt_too_long"
    assert engine.finished(other).reason == "stop"
    engine.check_is_empty()


@pytest.mark.parametrize("max_streams", [1, 2, 3, 5, 7])
def test_every_batch_size_works(max_streams):
    """Fault 7: batch sizes that were no power of two, or under a bucket, raised."""
    model = load_toy("toy-depth")
    config = replace(CONFIG, max_streams=max_streams)
    plans = [make_plan(model, "hi")] * 7
    got = Engine(model, config).speak(plans, seeds=[1] * 7)
    for pcm in got[1:]:
        same_pcm(pcm, got[0])


def test_codec_state_is_seeded_by_the_plan():
    model = load_toy("toy-delayed")
    assert model.spec.voices[0] == "loud"
    plan = make_plan(model, TEXTS[0])
    quiet = replace(plan, codec_state={"gain": torch.tensor([0.25])})
    loud_pcm, quiet_pcm = Engine(model).speak([plan, quiet], seeds=[1, 1])
    np.testing.assert_allclose(quiet_pcm, 0.25 * loud_pcm, atol=1e-7)


def configs() -> Sequence[EngineConfig]:
    return [CONFIG, replace(CONFIG, policy="throughput")]


@pytest.mark.parametrize("config", configs(), ids=["latency", "throughput"])
def test_both_policies_say_the_same(config):
    """Fault 9: without streaming, audio was never decoded."""
    model = load_toy("toy-interleaved")
    plans = [make_plan(model, text) for text in TEXTS]
    expected = [Engine(model).speak([plan], seeds=[2])[0] for plan in plans]
    for got, wanted in zip(
        Engine(model, config).speak(plans, seeds=[2] * 4), expected, strict=True
    ):
        same_pcm(got, wanted)

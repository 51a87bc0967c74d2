"""CosyVoice 2's LM on a small random checkpoint, against its own class, which loads all its files.

Logits: 1e-4, float32 with sums in another order. Speech tokens: identical; they are heard as they
are here, see `tests.models.cosyvoice2.tiny`. The detokenizer against the reference is in
`test_token2wav`; here streams sound as their tokens do alone, to 2e-3 as there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from models.base import PromptPlan
from models.cosyvoice2.model import CosyVoiceModel, load
from models.spec import PlanRequest
from tests.engine.harness import Engine, check_giving_way, greedy, let_it_end
from tests.models.cosyvoice2.tiny import codes_in, load_codes_as_sound, make_checkpoint
from tests.models.toy.reference import FullAttention
from tests.parity.oracle import ask
from tests.parity.test_token2wav import speak

TEXTS = (
    "Hello there.",
    "One two three four five six seven.",
    "A much longer sentence, so that its prompt takes more rows than all of the others together.",
    "Why?",
    "Numbers like 42 come as they are.",
    "Ünïcödé is bytes <sigh> here.",
    "So long.",
    "In a whisper.",
)
WORDS = (
    None,
    "so it hums",
    "it hums, and more than once",
    None,
    "hum",
    None,
    "hums and hums",
    None,
)
INSTRUCTED = 7
STREAMED = (0, 2, 3, 4)
"""Of the texts, those that come while they are spoken; with 12, 91, 4 and 33 ids."""
N_FRAMES = 200
CONFIG = EngineConfig(max_streams=9, max_batch_rows=64, prefill_rows_per_step=48, target_load=1.0)
SLOW_PREFILL = replace(CONFIG, prefill_rows_per_step=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cosyvoice2"))


@pytest.fixture(scope="module")
def model(folder) -> CosyVoiceModel:
    return load_codes_as_sound(folder)


def request(n: int) -> PlanRequest:
    """Each speaks with a recording of its own."""
    hum = np.sin(np.arange(36_000 + 2_000 * n) * (0.01 + 0.01 * n)).astype(np.float32)
    options = {} if WORDS[n] is None else {"reference_text": WORDS[n]}
    if n == INSTRUCTED:
        options = {"instructions": "very slowly"}
    return PlanRequest(text=TEXTS[n], audio=hum, audio_rate_hz=24_000, options=options)


def long(model: CosyVoiceModel, plan: PromptPlan, n_frames: int = N_FRAMES) -> PromptPlan:
    n_rows = n_frames + 1 if plan.is_text_final else None
    return replace(greedy(model, plan), max_frames=n_frames, max_rows=n_rows)


@pytest.fixture(scope="module")
def plans(model) -> list[PromptPlan]:
    return [long(model, model.plan(request(n))) for n in range(len(TEXTS))]


@pytest.fixture(scope="module")
def reference(folder, model, plans) -> dict[str, torch.Tensor]:
    """The prompts go there in parts, as they stand in ours."""
    config, inputs = model.config, {"n_rows": torch.tensor(N_FRAMES)}
    for n, plan in enumerate(plans):
        ids = plan.ids[:, 0]
        n_text = len(model.tokenizer.encode(TEXTS[n].replace("<sigh>", "[sigh]")).ids)
        at = int((ids == config.speech_mark).nonzero())
        inputs[f"words{n}"], inputs[f"text{n}"] = ids[1 : at - n_text], ids[at - n_text : at]
        inputs[f"codes{n}"] = ids[at + 1 :] - config.first_code
        assert ids[0] == config.start_mark
    for n in STREAMED:
        inputs[f"streamed{10 + n}"] = inputs[f"text{n}"].clone()
    return ask("cosyvoice_lm", folder, inputs, apart="cosyvoice")


def check(reference, got, n_frames=N_FRAMES) -> None:
    for n, pcm in enumerate(got):
        expected = reference[f"speech{n % len(TEXTS)}"][:n_frames].tolist()
        assert len(expected) == n_frames
        assert codes_in(pcm) == expected, n


def test_prompts_have_what_their_voices_know(plans, model):
    n_codes = [int((plan.ids >= model.config.first_code).sum()) for plan in plans]
    assert [n > 0 for n in n_codes] == [words is not None for words in WORDS]
    (end,) = model.tokenizer.encode("<|endofprompt|>").ids
    assert [bool((plan.ids == end).any()) for plan in plans] == [False] * INSTRUCTED + [True]
    (sigh,) = model.tokenizer.encode("[sigh]").ids
    assert [n for n, plan in enumerate(plans) if (plan.ids == sigh).any()] == [5]


def test_logits_are_those_of_the_reference(model, plans, reference):
    for n, plan in enumerate(plans):
        x = model.embed(plan.ids, torch.full((len(plan.ids),), -1))
        hidden = model.backbone(x, torch.arange(len(x)), FullAttention())[-1:]
        expected = reference[f"logits{n}"]
        assert expected[:-3].std() > 0.5
        torch.testing.assert_close(model.heads(hidden)[0][0], expected, atol=1e-4, rtol=1e-4)


def test_a_stream_says_what_the_reference_says(model, plans, reference):
    check(reference, Engine(model, CONFIG).speak(plans[:1], seeds=[0]))


def test_eight_streams_in_a_batch_say_what_the_reference_says(model, plans, reference):
    assert len({tuple(reference[f"speech{n}"].tolist()) for n in range(8)}) == 8
    check(reference, Engine(model, CONFIG).speak(plans, seeds=range(8)))


def test_prompts_in_pieces_change_nothing(model, plans, reference):
    short = [long(model, plan, 60) for plan in plans]
    check(reference, Engine(model, SLOW_PREFILL).speak(short, seeds=range(8)), 60)


def test_giving_way_and_coming_back_changes_nothing(model, plans):
    check_giving_way(model, replace(plans[1], max_rows=None))


@pytest.mark.parametrize("n_frames", [0, 1, 2, 24, 26, 63])
def test_an_end_of_the_model_s_own_leaves_all_frames(
    model, plans, reference, monkeypatch, n_frames
):
    end = torch.tensor([model.config.first_code + model.config.n_codes])
    let_it_end(monkeypatch, model, end, n_frames)
    engine = Engine(model, CONFIG)
    check(reference, engine.speak(plans[:1], seeds=[0]), n_frames)
    engine.check_is_empty()


@pytest.mark.parametrize("n_streams", range(1, 10))
def test_every_batch_size_gives_the_same(model, plans, reference, n_streams):
    short = [long(model, plan, 12) for plan in (*plans, plans[0])[:n_streams]]
    check(reference, Engine(model, CONFIG).speak(short, seeds=range(n_streams)), 12)


def feed(engine: Engine, model: CosyVoiceModel, n: int, cuts: list[int], n_steps: int) -> int:
    """Open a stream whose text comes in pieces, so many steps apart."""
    text = TEXTS[n]
    pieces = [text[low:high] for low, high in zip([0, *cuts], [*cuts, None], strict=True)]
    opening = replace(request(n), text=pieces[0], is_text_final=False, options={})
    plan = model.plan(opening)
    stream_id = engine.open(long(model, plan))
    for idx, piece in enumerate(pieces[1:], start=2):
        for _ in range(n_steps):
            engine.step()
        ids = model.extend(plan, piece, is_final=False).tolist()
        engine.extend(stream_id, ids, is_final=idx == len(pieces))
    return stream_id


@pytest.mark.parametrize("n_steps", [0, 1, 60])
@pytest.mark.parametrize(
    ("n", "cuts"), [(0, [3, 7]), (2, [5, 20, 21, 60]), (2, [11]), (3, [1]), (4, [30])]
)
def test_text_that_comes_while_it_speaks_gives_what_the_reference_gives(
    model, reference, n, cuts, n_steps
):
    """Whatever the pieces, and with waits in which the stream starves."""
    engine = Engine(model, CONFIG)
    stream_id = feed(engine, model, n, cuts, n_steps)
    engine.run()
    assert codes_in(engine.pcm(stream_id)) == reference[f"speech{10 + n}"].tolist()
    engine.check_is_empty()


def test_streamed_and_whole_texts_share_batches(model, plans, reference):
    engine = Engine(model, CONFIG)
    whole = [engine.open(plan, seed=n) for n, plan in enumerate(plans[:3])]
    streamed = [feed(engine, model, n, [2, 9], 3) for n in (0, 2, 4)]
    engine.run()
    check(reference, [engine.pcm(stream_id) for stream_id in whole])
    for n, stream_id in zip((0, 2, 4), streamed, strict=True):
        assert codes_in(engine.pcm(stream_id)) == reference[f"speech{10 + n}"].tolist()


def test_each_stream_has_the_sound_of_its_tokens_in_its_voice(folder, model, plans, reference):
    """With the detokenizer: streams of several lengths and voices, streamed and whole, together."""
    sounding = load(folder)
    lengths = {0: 1, 1: 12, 3: 15, 4: 37, 5: 61}
    engine = Engine(sounding, CONFIG)
    made = {n: sounding.plan(request(n)) for n in lengths}
    ids = {n: engine.open(long(sounding, made[n], lengths[n])) for n in lengths}
    late = feed(engine, sounding, 2, [5, 20, 60], 3)
    engine.run()
    whole = {n: (engine.pcm(ids[n]), reference[f"speech{n}"][: lengths[n]]) for n in lengths}
    whole[2] = (engine.pcm(late), reference["speech12"])
    for n, (pcm, tokens) in whole.items():
        voice = sounding.plan(replace(request(n), options={})).codec_state
        expected = speak(sounding.codec, dict(voice), tokens, [0]).numpy()
        assert len(pcm) == len(expected) == 960 * len(tokens)
        # Beyond, the roundings of the pitch have added up to more.
        np.testing.assert_allclose(pcm[:72_000], expected[:72_000], rtol=0, atol=2e-3)
    engine.check_is_empty()

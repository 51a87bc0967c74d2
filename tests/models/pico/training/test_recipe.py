"""Pure parts of the recipe: batches, schedule, latents, measures, corpus."""

import random

import numpy as np

from models.pico.training import codec, corpus, heldout, measure, parallel
from models.pico.training.common import SAMPLE_RATE_HZ
from models.pico.training.templates import HELD_OUT_TEMPLATES, TEMPLATES, fill


def test_an_epoch_holds_each_utterance_once_and_batches_keep_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(10, 200, 500)
    batches = parallel.plan_batches(lengths, 800, np.random.default_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    assert all(len(b) * lengths[b].max() <= 800 for b in batches)


def test_rate_warms_up_stays_and_falls_to_two_percent() -> None:
    assert parallel.rate(0, 0.0) == 0.01
    assert parallel.rate(500, 0.2) == 1.0
    assert abs(parallel.rate(5000, 1.0) - 0.02) < 1e-12


def test_latents_survive_the_coordinates() -> None:
    rng = np.random.default_rng(0)
    root, inverse = codec.weighting(rng.normal(size=(256, 192, 7)))
    whole = np.linalg.qr(rng.normal(size=(768, 768)))[0]
    constants = {"zm": rng.normal(size=192), "L": root, "Li": inverse,
                 "mu": rng.normal(size=768), "P": whole}  # fmt: skip
    latents = rng.normal(size=(10, 192))
    back = codec.decode(codec.encode(latents, constants), constants)
    # fp32 arithmetic over 768 dimensions.
    assert np.abs(back[:10] - latents).max() < 1e-4
    assert len(back) == 12


def test_pitch_of_a_buzz_is_its_pitch() -> None:
    t = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    wave = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 12))
    found = measure.pitch_hz(0.1 * wave)
    # A whole number of samples a period: 0.6 Hz at 120 Hz.
    assert len(found) > 50
    assert abs(np.median(found) - 120) < 1.0


def test_noise_has_no_pitch() -> None:
    noise = np.random.default_rng(0).normal(size=SAMPLE_RATE_HZ)
    assert len(measure.pitch_hz(noise)) == 0


def test_mel_distance_of_a_wave_to_itself_is_zero() -> None:
    wave = np.random.default_rng(0).normal(size=5000)
    assert measure.mel_distance(wave, wave) == 0.0
    assert measure.mel_distance(wave, 0.5 * wave) > 0.1


def test_templates_leave_no_slot_open() -> None:
    rng = random.Random(0)
    for template in TEMPLATES + HELD_OUT_TEMPLATES:
        text = fill(template, rng)
        assert "{" not in text
        assert text[0].isupper() or text[0].isdigit()


def test_held_out_sentences_are_apart() -> None:
    assert len(heldout.TEST) == len(heldout.DEV) == 40
    assert len(heldout.MORE) == 200
    assert len(heldout.all_texts()) == 280
    assert not set(TEMPLATES) & set(HELD_OUT_TEMPLATES)


def test_only_speakable_examples_pass() -> None:
    assert corpus.as_sentence("a  walk in the park") == "A walk in the park."
    assert corpus.as_sentence("H2O is water, really") is None
    assert corpus.as_sentence("too short") is None

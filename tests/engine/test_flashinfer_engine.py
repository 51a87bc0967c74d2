"""Whole streams on FlashInfer's double say what they say on the torch backend, index for index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from engine.attention import kernels
from engine.config import EngineConfig
from models.base import SpeechModel
from models.layers import fused
from models.toy.catalogue import TOYS
from tests.engine import flashinfer_double, flashinfer_rules
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan

PIECES = replace(CONFIG, prefill_rows_per_step=7, page_size=4)
"""Prompts come in pieces that do not fit the pages."""
SAID = (TEXTS[0], TEXTS[2], TEXTS[3])
SPEAKING = sorted(TOYS.keys() - {"toy-tone", "toy-faulty"})
"""The tone has no attention, and what is faulty on purpose shows nothing more."""


@pytest.fixture(autouse=True, scope="module")
def _wide() -> Iterator[None]:
    """float32, so that a stream that differs differs by an index and not by rounding."""
    with flashinfer_rules.wide():
        yield


@pytest.fixture
def engine_of():
    """An engine on either backend."""

    def make(kind: str, model: SpeechModel, config: EngineConfig) -> Engine:
        if kind == "flashinfer":
            kernels.stand_in(flashinfer_double)
        try:
            return Engine(model, replace(config, attention=kind))
        finally:
            kernels.stand_in(None)

    yield make
    fused.switch_on(None)


def speak(engine: Engine, texts: Sequence[str], n_waves: int = 1) -> list[tuple[bytes, str]]:
    """PCM and text of streams that run together; each wave finds the pages of the one before."""
    said = []
    for _ in range(n_waves):
        plans = [make_plan(engine.model, text) for text in texts]
        ids = [engine.open(plan, seed=n) for n, plan in enumerate(plans)]
        engine.run()
        engine.check_each_ended_once(ids)
        engine.check_is_empty()
        for one in ids:
            engine.finished(one)
        said += [(engine.pcm(one).tobytes(), engine.text(one)) for one in ids]
    return said


@pytest.mark.parametrize("name", SPEAKING)
def test_streams_say_the_same(name, engine_of):
    """Prompts in pieces, guided pairs, prefixes that are shared, batches of every size."""
    model = load_toy(name)
    expected = speak(engine_of("torch", model, PIECES), SAID, n_waves=2)
    engine = engine_of("flashinfer", model, PIECES)
    assert speak(engine, SAID, n_waves=2) == expected
    if name == "toy-interleaved":
        assert engine.loop.n_cached_pages > 0, "no prefix was shared: nothing was shown"


@pytest.mark.parametrize("name", ["toy-depth", "toy-mixed"])
def test_pages_that_are_taken_again_hold_nothing_of_before(name, engine_of):
    """A pool for two streams or so: every wave writes on pages that others have left."""
    model = load_toy(name)
    n_longest = -(-model.spec.backbone.max_positions // PIECES.page_size)
    config = replace(PIECES, n_pages=1 + 3 * n_longest)
    expected = speak(engine_of("torch", model, config), SAID, n_waves=3)
    assert speak(engine_of("flashinfer", model, config), SAID, n_waves=3) == expected


def test_a_stream_that_is_cut_short_leaves_the_others_alone(engine_of):
    said = []
    for kind in ("torch", "flashinfer"):
        engine = engine_of(kind, load_toy("toy-delayed"), PIECES)
        ids = [engine.open(make_plan(engine.model, text), seed=3) for text in TEXTS]
        for _ in range(6):
            engine.step()
        engine.abort(ids[1])
        engine.run()
        engine.check_is_empty()
        said.append([engine.pcm(one).tobytes() for one in ids if one != ids[1]])
    assert said[0] == said[1]

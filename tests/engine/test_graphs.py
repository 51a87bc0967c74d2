"""Recorded steps: what they say is what plain steps say, and what would spoil them is refused.

CUDA graphs are tested on a double (`tests.engine.recorded_graphs`); compiled steps are real.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine import device as device_module
from engine.config import EngineConfig
from engine.errors import EngineConfigError, GraphError
from engine.graphs import Graphs, bucket_of, bucket_sizes, compiled_recorder, make_graphs
from models.base import SpeechModel
from models.spec import SamplingParams
from tests.engine.harness import CONFIG, TEXTS, Engine, load_toy, make_plan
from tests.engine.recorded_graphs import record

SPEAKING = (
    *("toy-tone", "toy-interleaved", "toy-delayed", "toy-depth", "toy-mixed", "toy-audio-in"),
    "toy-streamed",
)
SMALL = replace(CONFIG, max_streams=3, graphs="cuda")


def shortened(model: SpeechModel) -> SpeechModel:
    """Fewer positions: fewer widths of attention to record."""
    model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=512))
    return model


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graphs]:
    """Those that engines make, on the double: first that of the rows, then that of the chunks."""
    made: list[Graphs] = []

    def make(choice: str, device: torch.device) -> Graphs | None:
        if choice == "off":
            return None
        made.append(Graphs(record))
        return made[-1]

    monkeypatch.setattr(device_module, "make_graphs", make)
    return made


def warm_engine(model: SpeechModel, config: EngineConfig = SMALL) -> Engine:
    engine = Engine(model, config)
    engine.loop.warm_up()
    return engine


def same_pcm(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order in which padded batches add up."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SPEAKING)
def test_replayed_steps_say_what_plain_steps_say(name, graphs):
    """Three streams of other lengths: buckets of 3, 2 and 1, so padding as well."""
    model = shortened(load_toy(name))
    plans = [make_plan(model, text) for text in TEXTS]
    expected = Engine(model, replace(SMALL, graphs="off")).speak(plans, seeds=range(4))
    engine = warm_engine(model)
    n_recorded = [len(part.keys) for part in graphs]
    for got, wanted in zip(engine.speak(plans, seeds=range(4)), expected, strict=True):
        assert len(wanted) > 0
        same_pcm(got, wanted)
    assert [len(part.keys) for part in graphs] == n_recorded, "nothing is recorded while serving"
    engine.check_is_empty()


def test_settings_beyond_the_models_own_run_recorded_steps_too(graphs):
    model = shortened(load_toy("toy-delayed"))
    names = [column.name for column in model.spec.columns]
    odd = SamplingParams(
        top_k=20,
        top_p=0.7,
        min_p=0.05,
        repetition_penalty=1.3,
        repetition_window=9,
        is_top_p_of_all=True,
        redraw_window=5,
    )
    plans = [replace(make_plan(model, t), sampling=dict.fromkeys(names, odd)) for t in TEXTS[:2]]
    plans.append(make_plan(model, TEXTS[3]))
    expected = Engine(model, replace(SMALL, graphs="off")).speak(plans, seeds=range(3))
    for got, wanted in zip(warm_engine(model).speak(plans, seeds=range(3)), expected, strict=True):
        same_pcm(got, wanted)


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-delayed"])
def test_what_rows_of_nobody_leave_behind_stays_legal(name, graphs):
    """A padding row that advanced for ever would run out of positions, ids and frames."""
    model = shortened(load_toy(name))
    engine = warm_engine(model)
    engine.speak([make_plan(model, TEXTS[0])], seeds=[0])
    slots = engine.loop._device.runner.slots
    for name, part in slots.tensors().items():
        if name not in ("frames", "fed", "drawn"):
            assert not part[slots.nobody].any(), name


# What is refused.


def recorded(call_of: Tensor) -> tuple[Graphs, dict[str, Tensor]]:
    uses = {"a buffer": call_of}
    graphs = Graphs(record)
    graphs.record(("double", 4), lambda: (uses["a buffer"] * 2,), uses)
    return graphs, uses


def test_a_replay_reads_what_the_buffer_holds_now():
    buffer = torch.arange(4.0)
    graphs, uses = recorded(buffer)
    buffer.fill_(5)
    (out,) = graphs.run(("double", 4), uses)
    assert out.tolist() == [10.0] * 4


def test_a_size_that_was_not_recorded_is_refused_by_name():
    graphs, uses = recorded(torch.zeros(4))
    with pytest.raises(GraphError, match="double 8 was not recorded; known are double 4"):
        graphs.run(("double", 8), uses)


@pytest.mark.parametrize(
    "other", [torch.zeros(4), torch.zeros(5), torch.zeros(4, dtype=torch.float64)]
)
def test_a_tensor_that_is_another_is_refused_by_name(other):
    graphs, _ = recorded(torch.zeros(4))
    with pytest.raises(GraphError, match="a buffer is not the one that double 4 was recorded with"):
        graphs.run(("double", 4), {"a buffer": other})


def test_weights_that_moved_are_found_while_idle(graphs):
    model = shortened(load_toy("toy-depth"))
    engine = warm_engine(model)
    engine.loop.check()
    head = model.decoder.layers[0].mlp
    name, weight = next(iter(head.named_parameters()))
    weight.data = weight.data.clone()
    with pytest.raises(GraphError, match=rf"layers.0.mlp.{name} is not the one"):
        engine.loop.check()


class ReadsOnTheHost:
    """A model whose `advance` looks at a value."""

    def __init__(self, inner: SpeechModel) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def advance(self, state: Tensor, ids: Tensor, feed: object) -> object:
        assert int(state.max()) >= 0
        return self.inner.advance(state, ids, feed)


def test_a_step_that_reads_on_the_host_is_refused_at_start(graphs):
    engine = Engine(ReadsOnTheHost(shortened(load_toy("toy-tone"))), SMALL)
    with pytest.raises(GraphError, match=r"draw 1 .* cannot be recorded \(--no-graphs does"):
        engine.loop.warm_up()


def test_a_second_warm_up_records_nothing(monkeypatch):
    recorded = []

    def counted(call):
        recorded.append(call)
        return record(call)

    monkeypatch.setattr(device_module, "make_graphs", lambda *_: Graphs(counted))
    engine = Engine(load_toy("toy-tone"))
    engine.loop.warm_up()
    n_once = len(recorded)
    engine.loop.warm_up()
    assert len(recorded) == n_once > 0


def test_batches_are_padded_to_few_sizes():
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(8) == (1, 2, 4, 8)
    assert bucket_sizes(11) == (1, 2, 4, 8, 11)
    assert [bucket_of(n, (1, 2, 4)) for n in (1, 2, 3, 4)] == [1, 2, 4, 4]
    with pytest.raises(GraphError, match="a batch of 5 is over the largest bucket, 4"):
        bucket_of(5, (1, 2, 4))


def test_where_steps_are_recorded_by_default():
    cpu = torch.device("cpu")
    assert make_graphs("auto", cpu) is None
    assert make_graphs("off", cpu) is None
    assert make_graphs("compile", cpu) is not None
    with pytest.raises(EngineConfigError, match="no CUDA graphs on cpu"):
        make_graphs("cuda", cpu)


# Compiled steps.


def test_compiled_steps_say_the_same_and_are_never_compiled_again(monkeypatch):
    """`eager` stands for the compiler: what is traced and guarded is what would be compiled."""

    def make(choice: str, device: torch.device) -> Graphs | None:
        return None if choice == "off" else Graphs(compiled_recorder(backend="eager"))

    monkeypatch.setattr(device_module, "make_graphs", make)
    model = load_toy("toy-interleaved")
    model.spec = replace(
        model.spec,
        backbone=replace(model.spec.backbone, max_positions=256),
        codec=replace(model.spec.codec, chunk_frames=(2,)),
    )
    plans = [make_plan(model, text, frames=4) for text in ("hello", "no")]
    config = replace(CONFIG, max_streams=2, graphs="compile")
    expected = Engine(model, replace(config, graphs="off")).speak(plans, seeds=range(2))
    engine = warm_engine(model, config)
    with torch.compiler.set_stance("fail_on_recompile"):
        for got, wanted in zip(engine.speak(plans, seeds=range(2)), expected, strict=True):
            same_pcm(got, wanted)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of the compiler's imports
def test_compiled_code_writes_into_the_buffers_that_it_was_compiled_for():
    """With the real compiler: new values and places in the same buffers are no new shapes."""
    rows, place = torch.zeros(4, 3), torch.tensor([1])
    pool = torch.zeros(9, 3)

    def call() -> tuple[Tensor, ...]:
        pool.index_copy_(0, place, rows[:1] * 2 + 1)
        return (pool.sum(dim=1),)

    graphs, uses = Graphs(compiled_recorder()), {"rows": rows, "place": place, "pool": pool}
    graphs.record(("store", 1), call, uses)
    pool.zero_()
    with torch.compiler.set_stance("fail_on_recompile"):
        for at in (2, 7):
            rows.fill_(at)
            place.fill_(at)
            (sums,) = graphs.run(("store", 1), uses)
            assert sums[at] == 3 * (2 * at + 1)
    assert pool[1].tolist() == [0.0] * 3

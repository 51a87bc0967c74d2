"""What device streams do in which order: no race, each wait is needed, and the work overlaps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine import device as device_module
from engine import in_flight as in_flight_module
from engine.codec_runner import ChunkTensors
from engine.config import EngineConfig
from engine.graphs import Graphs
from engine.launch import ChunkLaunch, PendingStep, RowLaunch
from engine.readback import read_back, send_back
from engine.types import StreamFinished
from tests.engine.fake_device import HOST, FakeDevice
from tests.engine.harness import CONFIG, ONE_SLOT, TEXTS, Engine, FakeClock, load_toy, make_plan
from tests.engine.recorded_graphs import record

CONFIG_OF_TWO = replace(CONFIG, max_streams=2)
DECODE_S, DETOKENIZE_S, HOST_S = 0.010, 0.008, 0.002


class Watched:
    """An engine of `toy-depth`, whose frame n comes from its row n, on a fake device."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        overlap: str = "on",
        has_codec_device: bool = False,
        config: EngineConfig = CONFIG_OF_TWO,
    ) -> None:
        def make_streams(device, codec_device, clock):
            self.fake = FakeDevice(clock, has_codec_device=has_codec_device)
            return self.fake.all()

        monkeypatch.setattr(device_module, "make_streams", make_streams)
        monkeypatch.setattr(device_module, "make_graphs", lambda *_: Graphs(record))
        model = load_toy("toy-depth")
        model.spec = replace(model.spec, backbone=replace(model.spec.backbone, max_positions=256))
        self.overlap = overlap
        self.engine = Engine(model, replace(config, overlap=overlap))
        self.engine.loop.warm_up()
        self.model = model
        self.results: dict[int, list] = {}
        self._watch(monkeypatch)

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, fake = self.engine.loop, self.fake
        runner, codec, launcher = loop._device.runner, loop._device.codec, loop._device.launcher
        parts = {
            name: getattr(owner, name)
            for owner, name in (
                (runner, "open_slot"),
                (runner, "prefill"),
                (runner, "decode"),
                (codec, "_gather"),
                (codec, "decode"),
                (launcher, "launch"),
            )
        }

        def open_slot(slot, plan, seed):
            parts["open_slot"](slot, plan, seed)
            fake.use("open", writes=[("slot", slot), ("codec state", slot)])

        def rows(name, batch, slots):
            streams = {group.stream.slot: group.stream for group in loop._active.values()}
            made = [("row", slot, streams[slot].n_rows) for slot in slots]
            results = parts[name](batch)
            slots = [("slot", slot) for slot in slots]
            fake.use(
                name,
                reads=slots,
                writes=[*slots, *made, *([fake.result("rows")] if made else [])],
                seconds=DECODE_S if name == "decode" else 0.0,
            )
            return results

        def gather(index, n_frames):
            spans = [(s, range(first, first + n)) for s, first, n, *_ in index.T.tolist()]
            read = [("row", slot, n) for slot, span in spans for n in span if slot < 2]
            fake.use("gather", reads=read, writes=[("frames buffer", n_frames)])
            return parts["_gather"](index, n_frames)

        def detokenize(slots, works):
            audio = parts["decode of codec"](slots, works)
            state = [("codec state", slot) for slot in slots]
            buffer = [("frames buffer", works[0].n_frames)]
            writes = [*state, fake.result("pcm")]
            fake.use("detokenize", reads=buffer, writes=writes, seconds=DETOKENIZE_S)
            return audio

        def launch(plan, resumed, groups):
            self.engine.clock.advance(HOST_S)
            return parts["launch"](plan, resumed, groups)

        def sent(pending, streams):
            self.results[id(pending)] = [("copied", thing) for thing in fake._results]
            return send_back(pending, streams)

        def read(pending, transfers):
            results = read_back(pending, transfers)
            fake.host_use("collect", self.results.pop(id(pending)))
            return results

        parts["decode of codec"] = codec.decode
        parts["decode"] = runner.decode
        runner.open_slot = open_slot
        runner.prefill = lambda batch: rows(
            "prefill", batch, [] if batch.finished is None else batch.finished.slots.tolist()
        )
        runner.decode = lambda batch: rows("decode", batch, batch.rows.slots.tolist())
        codec._gather, codec.decode, launcher.launch = gather, detokenize, launch
        monkeypatch.setattr(in_flight_module, "send_back", sent)
        monkeypatch.setattr(in_flight_module, "read_back", read)

    def speak(self, n_frames: int = 30) -> FakeDevice:
        """Four streams through two slots, one of them aborted while a step works for it."""
        plans = [make_plan(self.model, text, frames=n_frames) for text in TEXTS]
        ids = [self.engine.open(plan, seed=n) for n, plan in enumerate(plans)]
        self.engine.step()
        group = self.engine.loop._active[ids[1]]
        is_on = self.overlap == "on"
        self.engine.run(
            until=lambda: (
                len(self.engine.chunks(ids[1])) > 2 and group.stream.n_chunks_in_flight == is_on
            )
        )
        self.engine.abort(ids[1])
        self.engine.run()
        self.engine.check_is_empty()
        return self.fake


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("has_codec_device", [False, True])
def test_whatever_is_used_twice_is_ordered(monkeypatch, overlap, has_codec_device):
    fake = Watched(monkeypatch, overlap=overlap, has_codec_device=has_codec_device).speak()
    assert fake.races == []
    names = {name for _, name, *_ in fake.work}
    assert names == {"open", "prefill", "decode", "gather", "detokenize", "copy"}


@pytest.mark.parametrize(
    ("has_codec_device", "waits", "mark_of"),
    [
        (False, "copy", "lm"),
        (False, "copy", "codec"),
        (False, HOST, "copy"),
        (True, "copy", "lm"),
        (True, "codec copy", "codec"),
        (True, "codec", "frames"),
        (True, "frames", "codec"),
        (True, HOST, "copy"),
        (True, HOST, "codec copy"),
    ],
)
def test_each_wait_is_needed(monkeypatch, has_codec_device, waits, mark_of):
    """Otherwise the test above would prove nothing."""
    watched = Watched(monkeypatch, has_codec_device=has_codec_device)
    watched.fake.ignored.add((waits, mark_of))
    assert watched.speak().races


def test_memory_that_is_given_away_under_a_launched_step_is_a_race(monkeypatch):
    watched = Watched(monkeypatch)
    loop = watched.engine.loop

    def release(group, *, is_suspect):
        loop._text.forget(group.stream.stream_id)
        loop._active.pop(group.stream.stream_id)
        loop._groups.close(group, is_suspect=is_suspect)

    loop._release = release
    assert watched.speak().races


@pytest.mark.parametrize("has_codec_device", [False, True])
@pytest.mark.parametrize("is_needed", [True, False])
def test_chunks_of_a_stream_that_came_back_follow_what_was_put_back(
    monkeypatch, has_codec_device, is_needed
):
    config = replace(ONE_SLOT, max_streams=1, patience_s=0.0)
    watched = Watched(monkeypatch, has_codec_device=has_codec_device, config=config)
    fake, engine, runner = watched.fake, watched.engine, watched.engine.loop._device.runner
    if not is_needed:
        fake.ignored.add(("frames" if has_codec_device else "codec", "lm"))
    put_back = runner.put_back

    def watched_put_back(slot, kept):
        put_back(slot, kept)
        fake.use("put back", writes=[("row", slot, n) for n in range(256)])

    runner.put_back = watched_put_back
    stalled = engine.open(make_plan(watched.model, "x", frames=9))
    engine.step()
    stream = engine.loop._active[stalled].stream
    while not stream.is_generation_done:
        engine.step()
    engine.pause(stalled, is_paused=True)
    other = engine.open(make_plan(watched.model, "x", frames=3))
    engine.run(until=lambda: any(isinstance(e, StreamFinished) for e in engine.of(other)))
    assert engine.loop.metrics.n_gave_way == 1
    engine.pause(stalled, is_paused=False)
    engine.run()
    assert not fake.races if is_needed else fake.races


def test_calls_that_are_measured_run_where_they_will_run(monkeypatch):
    watched = Watched(monkeypatch)
    engine = Engine(watched.model, CONFIG)
    device, names = engine.loop._device, set()
    step = device.codec._step

    def watched_step(frames, index):
        names.add(watched.fake.current.name)
        return step(frames, index)

    device.codec._step = watched_step
    engine.loop.warm_up()
    assert names == {"codec"}


IGNORED = {"none": (), "lm": ("lm",), "codec": ("codec", "frames")}
"""Frames are gathered when the call before them is through, so its wait is ignored with it."""


@pytest.mark.parametrize("has_codec_device", [False, True])
@pytest.mark.parametrize("ignored", IGNORED)
def test_what_is_measured_is_waited_for_wherever_it_runs(monkeypatch, has_codec_device, ignored):
    """Whoever reads the clock before a device is through thinks that its work costs nothing."""
    watched = Watched(monkeypatch, has_codec_device=has_codec_device)
    engine = Engine(watched.model, CONFIG)
    fake, device = watched.fake, engine.loop._device
    fake.ignored |= {(HOST, name) for name in IGNORED[ignored]}
    decode, detokenize = device.runner.decode, device.codec.decode

    def watched_decode(batch):
        fake.use("decode", seconds=DECODE_S)
        return decode(batch)

    def watched_detokenize(slots, works):
        fake.use("detokenize", seconds=DETOKENIZE_S)
        return detokenize(slots, works)

    device.runner.decode, device.codec.decode = watched_decode, watched_detokenize
    engine.clock = fake.clock
    engine.loop.warm_up()
    costs = engine.loop.costs
    is_free = {"lm": ignored == "lm", "codec": ignored == "codec"}
    assert costs.step_s(1, 0) == pytest.approx(0 if is_free["lm"] else DECODE_S, abs=1e-4)
    assert costs.chunk_s(1, 2) == pytest.approx(0 if is_free["codec"] else DETOKENIZE_S, abs=1e-4)


# Overlap, on the clock of the device.


def decodes(fake: FakeDevice) -> list[tuple[float, float]]:
    return [(begin, end) for _, name, begin, end in fake.work if name == "decode"]


def speak_one(monkeypatch: pytest.MonkeyPatch, overlap: str) -> FakeDevice:
    watched = Watched(monkeypatch, overlap=overlap)
    watched.engine.open(make_plan(watched.model, "x", frames=40))
    watched.engine.run()
    return watched.fake


def test_the_device_does_not_wait_for_the_host(monkeypatch):
    pauses = {}
    for overlap in ("on", "off"):
        begun = decodes(speak_one(monkeypatch, overlap))[10:-5]
        pauses[overlap] = [b[0] - a[1] for a, b in itertools.pairwise(begun)]
    assert max(pauses["on"]) == pytest.approx(0)
    assert min(pauses["off"]) >= HOST_S


def test_chunks_are_detokenized_beside_rows(monkeypatch):
    fake = speak_one(monkeypatch, "on")
    calls = [(begin, end) for _, name, begin, end in fake.work if name == "detokenize"]
    beside = [
        (begin, end)
        for begin, end in calls[1:-1]
        if any(a < end and begin < b for a, b in decodes(fake))
    ]
    assert len(calls) > 3
    assert beside == calls[1:-1]


class Streams(TorchDispatchMode):
    """Names of the streams in which torch puts work; views are no work."""

    def __init__(self, fake: FakeDevice) -> None:
        super().__init__()
        self.fake, self.names = fake, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.add(self.fake.current.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_codec_device", [False, True])
def test_results_are_touched_in_no_stream_that_has_not_waited_for_them(has_codec_device):
    fake = FakeDevice(FakeClock(), has_codec_device=has_codec_device)
    pcm = torch.arange(12.0).view(6, 2).T
    audio = ChunkTensors(
        pcm=pcm, n_samples=torch.tensor([5, 6]), is_finite=torch.tensor([True, False])
    )
    pending = PendingStep(
        rows=[RowLaunch(groups=(), results=torch.ones(2, 6, dtype=torch.int32))],
        chunks=[ChunkLaunch(groups=(), works=(), audio=audio)],
    )
    with Streams(fake) as seen:
        transfers = send_back(pending, fake.all())
    assert seen.names <= {"copy", "codec copy"}
    (chunk,) = read_back(pending, transfers).chunks
    assert (chunk.n_samples, chunk.is_finite) == ([5, 6], [True, False])
    assert chunk.pcm.tolist() == pcm.tolist()

"""What a model takes of its device: the plan, what it rests on, and what is said when it fails."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from engine.attention import kernels
from engine.attention.flashinfer import SCHEDULE_BYTES, WORKSPACE_BYTES
from engine.attention.paged import PagedAttention
from engine.config import EngineConfig
from engine.errors import EngineConfigError, MemoryShortError
from engine.graphs import Graphs
from engine.loop import EngineLoop
from engine.memory import (
    CPU_MOST_BYTES,
    CPU_SHARE,
    FOR_WEIGHTS,
    GRAPH_BYTES,
    MemoryPlan,
    budget,
    free_bytes,
    plan_memory,
    shown,
    telling_what_to_lower,
    weights_bytes,
)
from engine.sizes import useful_pages
from models.layers.linear import linear_of, pack
from models.spec import BackboneSpec
from tests.engine import flashinfer_double, flashinfer_rules, stand_ins
from tests.engine.harness import CONFIG, Engine, load_toy, make_plan

CPU = torch.device("cpu")
KIB = 1024


def _machine(root: Path, available_kib: int, **container: int | str) -> Path:
    (root / "proc").mkdir()
    lines = ["MemTotal:       9999999 kB", f"MemAvailable:   {available_kib} kB", "Buffers: 1 kB"]
    (root / "proc/meminfo").write_text("\n".join(lines))
    if container:
        folder = root / "sys/fs/cgroup"
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(f"{container['most']}\n")
        (folder / "memory.current").write_text(f"{container['now']}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {container['files']}\n")
    return root


def plan(model, config: EngineConfig = CONFIG, dtype: torch.dtype = torch.float32):
    return plan_memory(model, config, CPU, dtype)


# The plan.


def test_a_pool_holds_what_all_slots_can_fill_and_no_more():
    model = load_toy("toy-interleaved")
    made = plan(model, replace(CONFIG, memory_bytes=10**12))
    assert made.n_pages == useful_pages(model.spec, CONFIG) == 1 + 8 * 4096 // 16
    # Two layers, keys and values, 16 rows, two heads of 12 channels, four bytes.
    assert made.page_bytes == 2 * 2 * 16 * 2 * 12 * 4


def test_a_small_budget_is_kept_to():
    model = load_toy("toy-delayed")
    fixed = plan(model, replace(CONFIG, n_pages=2))
    fixed_bytes = fixed.lm.fixed_bytes
    budget_bytes = fixed_bytes + 300 * fixed.page_bytes + fixed.page_bytes // 2
    made = plan(model, replace(CONFIG, memory_bytes=budget_bytes))
    assert made.n_pages == 300
    assert made.lm.pool_bytes + made.lm.fixed_bytes <= budget_bytes
    half = plan(model, replace(CONFIG, memory_bytes=budget_bytes), torch.bfloat16)
    assert half.n_pages == 601, "pages of half the size"


def test_what_a_stream_holds_is_planned_for_each_slot():
    model = load_toy("toy-depth")
    each_bytes = 0
    for part in model.spec.codec.state:
        each_bytes += torch.empty(part.shape, dtype=getattr(torch, part.dtype)).nbytes
    made = [plan(model, replace(CONFIG, max_streams=n)) for n in (4, 8)]
    assert made[1].lm.codec_bytes - made[0].lm.codec_bytes == 4 * each_bytes > 0
    # Rows that were fed, their phase, and frames, at all positions.
    n_numbers = 4096 * (model.spec.n_columns + 1) + 4096 * model.spec.frame.n_codebooks
    assert made[1].lm.state_bytes - made[0].lm.state_bytes > 4 * 4 * n_numbers


def test_pages_that_are_asked_for_stand():
    model = load_toy("toy-tone")
    assert plan(model, replace(CONFIG, n_pages=77, memory_bytes=1)).n_pages == 77


@pytest.mark.parametrize("name", ["toy-interleaved", "toy-delayed"])
def test_a_budget_without_room_for_one_short_stream_says_what_to_lower(name):
    model = load_toy(name)
    with pytest.raises(MemoryShortError, match=rf"{name} does not fit: it may take 0\.1 MB of cpu"):
        plan(model, replace(CONFIG, memory_bytes=100_000))
    with pytest.raises(
        MemoryShortError, match="lower --max-streams, give it more by --memory-frac"
    ):
        EngineLoop(model, replace(CONFIG, memory_bytes=100_000), lambda events: None, lambda: 0.0)


def test_a_pool_smaller_than_all_slots_serves_and_a_longer_stream_is_refused():
    model = load_toy("toy-interleaved")
    least = plan(model, replace(CONFIG, n_pages=2))
    fixed_bytes = least.lm.fixed_bytes
    config = replace(CONFIG, memory_bytes=fixed_bytes + 150 * least.page_bytes)
    engine = Engine(model, config)
    assert engine.loop.stats.n_pages == 0, "told with the first step"
    fits = engine.open(replace(make_plan(model, "abc", frames=5), max_frames=5))
    long = engine.open(replace(make_plan(model, "abc", frames=900), max_frames=900))
    engine.run()
    assert engine.loop.stats.n_pages == 149
    assert engine.finished(fits).n_frames == 5
    failure = engine.failed(long)
    assert failure.code == "prompt_too_long"
    assert "the engine has 149" in failure.message
    assert failure.retry_after_s is None


def test_the_plan_is_told_in_a_line():
    (told,) = plan(load_toy("toy-depth"), replace(CONFIG, n_pages=1234)).lines()
    assert told.startswith("memory on cpu: weights ")
    assert "1,234 KV pages" in told
    assert "attention" not in told, "a CPU needs none"
    assert "recorded steps" not in told


# On GPUs, which need not be there: the plan makes nothing on them.

GIB = 2**30


@pytest.fixture
def cards(monkeypatch) -> dict[str, int]:
    """Two cards with so many bytes free, and kernels for them."""
    free = {"cuda:0": 20 * GIB, "cuda:1": 10 * GIB}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[str(device)], 80 * GIB))
    kernels.stand_in(flashinfer_double)
    yield free
    kernels.stand_in(None)


def plan_on_cards(name: str = "toy-depth", codec: str = "cuda:0", **settings) -> MemoryPlan:
    model, devices = load_toy(name), (torch.device("cuda:0"), torch.device(codec))
    return plan_memory(
        model,
        replace(CONFIG, **settings),
        devices[0],
        torch.bfloat16,
        detokenizer=model if codec == "cuda:1" else None,
        codec_device=devices[1],
    )


@pytest.mark.usefixtures("cards")
def test_kernels_and_recorded_steps_are_counted():
    made, plain = plan_on_cards(), plan_on_cards(graphs="off")
    # One wrapper for prompts and one for steps that stand alone, one each for batches of 1, 2, 4
    # and 8 and for prompts of 16, 32 and 64 rows.
    assert made.pinned_bytes == 9 * SCHEDULE_BYTES
    assert made.lm.attention_bytes >= WORKSPACE_BYTES + 9 * SCHEDULE_BYTES
    assert made.lm.graph_bytes == GRAPH_BYTES
    assert (plain.pinned_bytes, plain.lm.graph_bytes) == (2 * SCHEDULE_BYTES, 0)
    # Companions double a batch: 1, 2, 4, 8 and 16 rows.
    assert plan_on_cards("toy-mixed").pinned_bytes == 10 * SCHEDULE_BYTES
    assert plan_on_cards(attention="torch").lm.attention_bytes == 0


def counted(wrapper: type, made: list[object]) -> type:
    """The same wrapper, whose makings are counted."""

    class Counted(wrapper):
        def __init__(self, *args, **named) -> None:
            super().__init__(*args, **named)
            made.append(self)

    return Counted


@pytest.mark.usefixtures("cards")
def test_wrappers_that_are_counted_are_those_that_the_backend_makes():
    made = []
    names = [name for name in vars(flashinfer_double) if name.endswith("Wrapper")]
    wrappers = {name: counted(getattr(flashinfer_double, name), made) for name in names}
    with stand_ins.used(), flashinfer_rules.wide():
        kernels.stand_in(SimpleNamespace(**{**vars(flashinfer_double), **wrappers}))
        config = replace(CONFIG, graphs="cuda", attention="flashinfer")
        Engine(load_toy("toy-mixed"), config).loop.warm_up()
    kernels.stand_in(flashinfer_double)
    assert SCHEDULE_BYTES * len(made) == plan_on_cards("toy-mixed").pinned_bytes


def test_a_detokenizer_of_its_own_device_is_counted_there(cards):
    one, two = plan_on_cards(), plan_on_cards(codec="cuda:1")
    assert one.codec is None
    assert two.codec is not None
    assert (two.lm.codec_bytes, two.codec.codec_bytes) == (0, one.lm.codec_bytes)
    assert two.codec.weights_bytes == one.lm.weights_bytes
    assert two.codec.graph_bytes == GRAPH_BYTES
    assert [line.split(":")[0] for line in two.lines()] == [
        "memory on cuda",
        "memory on cuda",
        "memory pinned on the host",
    ]
    assert [line[:16] for line in two.lines()[:2]] == ["memory on cuda:0", "memory on cuda:1"]
    cards["cuda:1"] = GRAPH_BYTES
    with pytest.raises(
        MemoryShortError, match=r"detokenizer of toy-depth .* of cuda:1, .* lower --max-streams"
    ):
        plan_on_cards(codec="cuda:1")


@pytest.mark.usefixtures("cards")
def test_recorded_steps_are_told_as_they_were_measured(caplog):
    planned = plan_on_cards(codec="cuda:1")
    made = planned.recorded({"cuda:0": 7_000_000, "cuda:1": 90_000_000})
    assert made.codec is not None
    assert (made.lm.graph_bytes, made.codec.graph_bytes) == (7_000_000, 90_000_000)
    assert "recorded steps 7.0 MB" in made.lines()[0]
    assert "recorded steps 90 MB" in made.lines()[1]
    assert not caplog.records
    planned.recorded({"cuda:1": GIB})
    assert "1.1 GB of cuda:1, and 537 MB was set aside" in caplog.text
    assert "--no-graphs" in caplog.text
    assert planned.recorded({}) is planned


def test_what_recording_takes_is_measured_on_each_device(monkeypatch):
    reserved = {"cuda:0": 100, "cuda:1": 40}
    engine = Engine(load_toy("toy-tone"), replace(CONFIG, max_streams=1))
    device = engine.loop._device
    device._devices = tuple(map(torch.device, reserved))
    device._graphs = device._codec_graphs = Graphs(stand_ins.recorder)

    def capture(name: str, n_bytes: int):
        return lambda: reserved.update({name: reserved[name] + n_bytes})

    monkeypatch.setattr(device.runner, "capture", capture("cuda:0", 7))
    monkeypatch.setattr(device.codec, "capture", capture("cuda:1", 5))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda one: reserved[str(one)])
    device.capture()
    assert device.recorded_bytes == {"cuda:0": 7, "cuda:1": 5}


# What it rests on.


def test_free_memory_is_the_machine_s_or_the_container_s(tmp_path):
    (tmp_path / "bare").mkdir()
    assert free_bytes(_machine(tmp_path / "bare", 5000)) == 5000 * KIB
    (tmp_path / "boxed").mkdir()
    boxed = _machine(tmp_path / "boxed", 5000, most=3_000_000, now=2_000_000, files=500_000)
    assert free_bytes(boxed) == 1_500_000, "files that were read are no use of memory"
    (tmp_path / "open").mkdir()
    opened = _machine(tmp_path / "open", 5000, most="max", now=2_000_000, files=0)
    assert free_bytes(opened) == 5000 * KIB
    (tmp_path / "full").mkdir()
    full = _machine(tmp_path / "full", 5000, most=1_000_000, now=2_000_000, files=0)
    assert free_bytes(full) == 0


def test_other_systems_have_half_of_their_memory(tmp_path):
    n_bytes = free_bytes(tmp_path)
    assert n_bytes > 0
    assert n_bytes % KIB == 0


@pytest.mark.parametrize(
    ("n_free", "fraction", "expected"),
    [
        (10**9, None, int(10**9 * CPU_SHARE)),
        (10**12, None, CPU_MOST_BYTES),
        (10**9, 0.5, 5 * 10**8),
        (10**12, 0.5, 5 * 10**11),
    ],
)
def test_a_cpu_gives_a_share_and_a_lot_only_if_it_is_asked_for(
    monkeypatch, n_free, fraction, expected
):
    monkeypatch.setattr("engine.memory.free_bytes", lambda: n_free)
    assert budget(replace(CONFIG, memory_fraction=fraction), CPU) == expected


@pytest.mark.parametrize("settings", [{"memory_fraction": 0.0}, {"memory_fraction": 1.1}])
def test_a_share_outside_its_range_is_refused(settings):
    with pytest.raises(EngineConfigError, match=r"must be in \(0, 1\]"):
        EngineConfig(**settings)


def test_weights_that_are_tied_count_once_and_packed_ones_count():
    table = nn.Embedding(100, 64)
    tied = linear_of(table.weight[10:60])
    model = nn.ModuleList([table, tied])
    assert weights_bytes(model) == 100 * 64 * 4
    own = nn.ModuleList([nn.Linear(64, 32, bias=False)])
    assert weights_bytes(own) == 64 * 32 * 4
    if pack(own, smallest=1):
        assert weights_bytes(own) == 64 * 32 * 4
    assert weights_bytes(object()) == 0


# When it fails all the same.


def _allocate() -> None:
    torch.empty(2**60)


def test_a_failed_allocation_says_what_to_lower():
    with (
        pytest.raises(MemoryShortError, match="warming up: this machine is out of memory; lower"),
        telling_what_to_lower("warming up"),
    ):
        _allocate()
    with (
        pytest.raises(
            MemoryShortError, match=r"the device is out .* lower --memory-fraction, .*no-g"
        ),
        telling_what_to_lower("warming up"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with (
        pytest.raises(
            MemoryShortError, match="loading it: the device is out of memory; take a --dty"
        ),
        telling_what_to_lower("loading it", FOR_WEIGHTS),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_other_faults_pass():
    with pytest.raises(RuntimeError, match="shapes"), telling_what_to_lower("warming up"):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [(0, "0.0 MB"), (412_000, "0.4 MB"), (37_400_000, "37 MB"), (1_240_000_000, "1.2 GB")],
)
def test_bytes_for_people(n_bytes, words):
    assert shown(n_bytes) == words


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads /proc of Linux")
def test_a_pool_takes_memory_only_where_it_is_written():
    def resident_bytes() -> int:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return n_pages * resource.getpagesize()

    before = resident_bytes()
    pool = PagedAttention(
        BackboneSpec(
            n_layers=4, n_query_heads=4, n_kv_heads=4, head_dim=64, hidden=256, max_positions=64
        ),
        n_pages=2000,
        page_size=16,
        n_sequences=1,
        device=CPU,
        dtype=torch.float32,
    )
    # 2000 pages in four layers, each 16 rows of keys and values: 262 MB.
    assert resident_bytes() - before < 50e6
    pool.scrub([1, 2])

"""What `/metrics` tells, and that documentation and dashboard speak of nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from engine.histogram import Histogram
from engine.types import StreamFinished
from models.spec import PlanRequest
from realtime.bridge import EngineBridge, EventRelay
from realtime.engine_metrics import EngineCollector
from realtime.metrics import GatewayMetrics
from realtime.playout import PlayoutClock
from tests.engine.harness import FakeClock
from tests.fakes import FakeEngine
from tests.realtime.harness import gateway, run, until
from tests.realtime.stepped import stepped_house
from tests.realtime.test_flow import LONG, PATIENT, PCM, STEP_S, connect_raw

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "parley.json"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<kind>\w+) \|(?P<labels>[^|]*)\|(?P<rest>.*)\|$")
SERIES = re.compile(r"\b(?:parley|process)_\w+")
SELECTOR = re.compile(r"\b((?:parley|process)_\w+)\{([^}]*)\}")


def live_text() -> str:
    """What a server with a real engine tells."""

    async def scenario():
        async with stepped_house() as here:
            async with here.client() as client:
                await client.send("session.update", session={"options": {"frames": 8}})
                await client.event("session.updated")
                assert (await client.say("Count me.")).status == "completed"
            return (await here.http("/metrics"))[2].decode()

    return run(scenario)


@pytest.fixture(scope="module")
def text() -> str:
    return live_text()


@pytest.fixture(scope="module")
def families(text) -> dict[str, str]:
    """Name, as one asks for it, and type of all that is told."""
    typed = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert list(text_string_to_metric_families(text)), "Prometheus can read it"
    return {name: kind for name, kind in typed if not name.endswith("_created")}


def documented() -> dict[str, tuple[str, set[str]]]:
    rows = [ROW.match(line) for line in (DOCS / "metrics.md").read_text().splitlines()]
    return {
        row["name"]: (row["kind"], set(re.findall(r"`(\w+)`", row["labels"])))
        for row in rows
        if row is not None
    }


def test_the_documentation_names_every_metric_with_its_type_and_no_other(families):
    assert {name: kind for name, (kind, _) in documented().items()} == families


def panels() -> list[dict]:
    flat: list[dict] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        flat += [panel, *panel.get("panels", [])]
    return flat


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def test_every_query_of_the_dashboard_names_a_metric_that_exists(text, families):
    # What has labels has no sample before it has happened once.
    series = {name for name, kind in families.items() if kind != "histogram"}
    series |= set(re.findall(r"^(\w+)(?:\{.*\})? ", text, re.MULTILINE))
    assert len(queries()) > 20
    for query in queries():
        named = set(SERIES.findall(query))
        assert named, query
        assert named <= series, f"{query}: {named - series}"


def test_every_label_in_the_dashboard_is_one_that_its_metric_has():
    labels = {name: known for name, (_, known) in documented().items()}
    for query in queries():
        used = set(re.findall(r"by \(([^)]*)\)", query))
        for name, matchers in SELECTOR.findall(query):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            asked = set(re.findall(r"(\w+)\s*[=!]", matchers)) - {"job", "instance"}
            assert asked <= labels[base], query
        named = [re.sub(r"_(bucket|sum|count)$", "", one) for one in SERIES.findall(query)]
        known = {"le", "job", "instance"}.union(*(labels.get(one, set()) for one in named))
        for group in used:
            assert {one.strip() for one in group.split(",")} <= known, query


def test_the_dashboard_is_laid_out_without_overlap():
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize(
    ("late_s", "continuous"),
    [
        (0.0, {"0": 1, "50": 1, "100": 1, "200": 1}),
        (0.05, {"0": 0, "50": 1, "100": 1, "200": 1}),
        (0.051, {"0": 0, "50": 0, "100": 1, "200": 1}),
        (0.2, {"0": 0, "50": 0, "100": 0, "200": 1}),
        (0.3, {"0": 0, "50": 0, "100": 0, "200": 0}),
    ],
)
def test_a_response_is_continuous_for_those_who_wait_as_long_as_it_was_late(late_s, continuous):
    metrics = GatewayMetrics()
    playout = PlayoutClock()
    playout.on_sent(1.0, 10.0)
    playout.on_sent(1.0, 11.0 + late_s)
    metrics.count_heard(playout)
    value = metrics.registry.get_sample_value
    assert value("parley_responses_heard_total") == 1
    for prebuffer_ms, n in continuous.items():
        labels = {"prebuffer_ms": prebuffer_ms}
        assert value("parley_responses_continuous_total", labels) == n, prebuffer_ms


@pytest.mark.parametrize("pace", ["playback", "fast"])
def test_responses_that_are_heard_are_counted_and_files_are_not(pace):
    async def scenario():
        async with stepped_house() as here, here.client() as client:
            output = {"codec": "pcm16", "pace": pace}
            options = {"frames": 25}
            await client.send("session.update", session={"output": output, "options": options})
            await client.event("session.updated")
            assert (await client.say("Hear this.")).status == "completed"
            n_heard = here.sample("parley_responses_heard_total")
            assert n_heard == (1 if pace == "playback" else 0)
            assert here.sample("parley_responses_continuous_total", prebuffer_ms="200") == n_heard

    run(scenario)


def test_what_the_engine_measures_is_told_by_model_and_stage():
    async def scenario():
        async with stepped_house() as here, here.client() as client:
            await client.send("session.update", session={"options": {"frames": 25}})
            await client.event("session.updated")
            await client.say("Measure this.")
            metrics = here.engine.loop.metrics
            for stage, histogram in (
                ("decode", metrics.decode_rows),
                ("prefill", metrics.prefill_rows),
                ("detokenize", metrics.chunk_streams),
            ):
                labels = {"model": "toy", "stage": stage}
                name = "parley_engine_batch_size"
                assert here.sample(f"{name}_count", **labels) == histogram.n > 0
                assert here.sample(f"{name}_sum", **labels) == histogram.sum
                assert here.sample("parley_engine_stage_seconds_count", **labels) > 0
            assert here.sample("parley_engine_step_seconds_count", model="toy") > 0
            # The first chunk of each stream is the first sound, all others have a slack.
            n_slack = here.sample("parley_engine_slack_seconds_bucket", model="toy", le="+Inf")
            n_first = here.sample("parley_engine_ttfa_seconds_count", model="toy")
            assert (n_slack + n_first, n_first) == (metrics.chunk_streams.sum, 1)
            assert here.sample("parley_engine_n_samples_total", model="toy") == 25 * 1920
            assert here.sample("parley_engine_n_pages", model="toy") > 0

    run(scenario)


def test_a_histogram_of_the_engine_has_the_buckets_of_prometheus():
    histogram = Histogram((-0.5, 0.0, 1.0))
    for value in (-1.0, -0.2, 0.5, 0.7, 9.0):
        histogram.add(value)

    class Measured(FakeEngine):
        @property
        def histograms(self):
            return {"slack_s": histogram}

    registry = CollectorRegistry()
    registry.register(EngineCollector({"fake": Measured(lambda events: None)}))
    name = "parley_engine_slack_seconds"
    for bound, n in (("-0.5", 1), ("0.0", 2), ("1.0", 4), ("+Inf", 5)):
        assert registry.get_sample_value(f"{name}_bucket", {"model": "fake", "le": bound}) == n


def test_commands_wait_in_the_inbox_while_the_engine_does_not_step():
    async def scenario():
        async with stepped_house() as here:
            here.engine.is_held = True
            here.engine.handle.abort(12345)
            assert here.sample("parley_engine_n_commands", model="toy") == 1
            here.engine.is_held = False
            await until(lambda: not here.sample("parley_engine_n_commands", model="toy"))

    run(scenario)


def test_a_cancel_is_timed_until_the_engine_has_freed_and_its_packets_are_counted():
    async def scenario():
        async with gateway(by_hand=True) as here, here.client() as client:
            await client.text("A sentence that is stopped long before its end, by its listener.")
            await until(lambda: here.engine.streams)
            count = "parley_cancel_to_freed_seconds_count"
            await client.send("response.cancel")
            await until(lambda: here.engine.streams[0].is_aborted)
            assert here.sample(count, model="fake") == 0, "not free yet"
            here.engine.step()
            await until(lambda: here.sample(count, model="fake"))
            assert here.sample(count, model="fake") == 1
            assert here.sample("parley_cancel_to_freed_seconds_sum", model="fake") >= 0
            assert (await client.spoken()).status == "cancelled"

    run(scenario)


@pytest.mark.parametrize(("reason", "n_told"), [("aborted", 1), ("stop", 0)])
def test_only_what_the_cancel_ended_is_timed(reason, n_told):
    """A stream may have ended by itself while the word was on its way."""

    async def scenario():
        told: list[float] = []
        clock = FakeClock()
        bridge = EngineBridge(FakeEngine(lambda events: None), EventRelay(), clock, told.append)
        plan = bridge.handle.plan(PlanRequest(text="To the end."))
        feed = bridge.open_stream(plan, seed=1, asked_s=0.0, play_from_s=None)
        bridge.abort(feed)
        clock.advance(0.25)
        bridge.abort(feed)  # said twice, timed from the first
        feed.put(
            StreamFinished(
                stream_id=feed.stream_id, reason=reason, n_prompt_rows=1, n_frames=0, n_samples=0
            )
        )
        assert told == [0.25] * n_told

    run(scenario)


def test_packets_that_a_cancel_throws_away_are_counted():
    async def scenario():
        async with gateway(PATIENT, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            async with here.client(sock=raw, max_queue=1) as client:
                await client.send("session.update", session=PCM)
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: here.sample("parley_pauses_total"))
                n_waiting = here.sample("parley_queue_seconds") / 0.02
                await client.send("response.cancel")
                await until(lambda: not here.engine.n_open)
                assert (await client.spoken()).status == "cancelled"
                # All that waited, but for the one in the socket's hands.
                assert here.sample("parley_packets_dropped_total") >= n_waiting - 2

    run(scenario)


def test_the_queue_that_is_furthest_behind_is_told():
    metrics = GatewayMetrics()
    queues = [0.25, 1.5, 0.0]
    metrics.watch({}, n_streams=lambda: 0, queues_s=lambda: queues)
    assert metrics.registry.get_sample_value("parley_queue_seconds") == 1.75
    assert metrics.registry.get_sample_value("parley_longest_queue_seconds") == 1.5
    queues.clear()
    assert metrics.registry.get_sample_value("parley_longest_queue_seconds") == 0

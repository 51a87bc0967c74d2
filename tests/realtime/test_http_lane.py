"""What the server says of itself over HTTP."""

import json
from dataclasses import replace

from models.spec import PhaseColumn, PhaseSpec
from realtime.protocol import SPEECH_PATH
from tests.fakes import fake_spec
from tests.realtime.harness import FAST_CONFIG, gateway, http_get, run, web_page
from tests.realtime.talk_harness import talk

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def upgrade(here, **headers):
    """An upgrade request that must be refused before it is one."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    status, answer, body = await http_get(here.port, SPEECH_PATH, UPGRADE | names)
    return status, answer, json.loads(body)["error"]


def test_health_and_readiness_follow_the_engine():
    async def scenario():
        async with gateway() as here:
            assert (await here.http("/healthz"))[0] == 200
            assert (await here.http("/readyz"))[0] == 200
            here.engine.is_ready = False
            assert (await here.http("/healthz"))[0] == 200
            status, _, body = await here.http("/readyz")
            assert (status, json.loads(body)["models"]) == (503, {"fake": False})
            here.engine.crash("out of memory")
            status, _, body = await here.http("/healthz")
            assert (status, json.loads(body)["failures"]) == (503, {"fake": "out of memory"})

    run(scenario)


def test_models_and_voices_come_from_the_specs():
    async def scenario():
        async with gateway() as here:
            models = json.loads((await here.http("/v1/models"))[2])
            assert models["object"] == "list"
            model = models["data"][0]
            assert (model["id"], model["voices"]) == ("fake", ["ada", "bob"])
            options = {option["name"]: option for option in model["options"]}
            assert options["speed"]["maximum"] == 2.0
            assert options["seed"]["kind"] == "integer"
            voices = json.loads((await here.http("/v1/audio/voices"))[2])
            assert [voice["id"] for voice in voices["voices"]] == ["ada", "bob"]
            assert voices["data"] == voices["voices"]

    run(scenario)


def test_one_model_is_found_by_its_name_and_another_one_is_not():
    async def scenario():
        async with gateway() as here:
            status, _, body = await here.http("/v1/models/fake")
            assert (status, json.loads(body)["object"]) == (200, "model")
            for name in ("nobody", "org/nobody", "%00", "fake/"):
                status, headers, body = await here.http(f"/v1/models/{name}")
                assert (status, headers["content-type"]) == (404, "application/json")
                error = json.loads(body)["error"]
                assert (error["code"], error["param"]) == ("model_not_found", "model")
                assert "served: fake" in error["message"]

    run(scenario)


def test_what_is_not_there_is_said_in_the_form_of_the_api():
    async def scenario():
        async with gateway() as here:
            for path in ("/v1/chat/completions", "/v1/audio/speech", "/v1/"):
                status, _, body = await here.http(path)
                assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_url")
                assert f"GET {path}" in json.loads(body)["error"]["message"]

    run(scenario)


def test_models_tell_who_can_be_talked_with():
    async def scenario():
        async with talk() as here:
            models = json.loads((await http_get(here.port, "/v1/models"))[2])["data"]
            tasks = {model["id"]: model["tasks"] for model in models}
            assert tasks == {"fake": ["speak"], "scripted": ["converse"]}
            assert models[1]["voices"] == ["ada", "bob"]

    run(scenario)


def test_metrics_count_what_happened():
    async def scenario():
        async with gateway() as here:
            async with here.client() as client:
                await client.say("Count me.")
            status, headers, body = await here.http("/metrics")
            assert status == 200
            assert headers["content-type"].startswith("text/plain")
            text = body.decode()
            assert "parley_ttfa_seconds_count 1.0" in text
            assert 'parley_responses_total{status="completed"} 1.0' in text
            assert 'parley_engine_is_ready{model="fake"} 1.0' in text
            assert 'parley_engine_n_finished_total{model="fake"} 1.0' in text
            assert "parley_event_loop_lag_seconds_bucket" in text
            assert here.sample("parley_bytes_sent_total", kind="audio") > 0

    run(scenario)


def test_the_page_and_its_files_are_served(tmp_path):
    config = replace(FAST_CONFIG, web_demo=web_page(tmp_path))

    async def scenario():
        async with gateway(config) as here:
            status, headers, body = await here.http("/")
            assert (status, body) == (200, b"<title>talk</title>")
            assert headers["content-type"].startswith("text/html")
            assert (await here.http("/app.js"))[0] == 200
            assert (await here.http("/../secret"))[0] == 404
            assert (await here.http("/nothing"))[0] == 404

    run(scenario)


def test_another_subprotocol_is_refused_by_name_before_the_upgrade():
    async def scenario():
        async with gateway() as here:
            status, _, error = await upgrade(here, Sec_WebSocket_Protocol="realtime, nari.v1")
            assert (status, error["code"]) == (400, "unknown_subprotocol")
            assert "realtime, nari.v1" in error["message"]
            assert "parley.v1" in error["message"]
            assert here.sample("parley_refusals_total", reason="unknown_subprotocol") == 1

    run(scenario)


def test_no_subprotocol_and_ours_among_others_are_accepted():
    async def scenario():
        async with gateway() as here:
            async with here.client(subprotocols=None) as client:
                assert client.socket.subprotocol is None
                assert (await client.say("Fine.")).status == "completed"
            async with here.client(subprotocols=["other", "parley.v1"]) as client:
                assert client.socket.subprotocol == "parley.v1"

    run(scenario)


def test_a_full_server_refuses_before_the_upgrade_with_a_time_to_wait():
    async def scenario():
        async with gateway(replace(FAST_CONFIG, max_sessions=1, retry_after_s=7)) as here:
            async with here.client():
                status, headers, error = await upgrade(here)
                assert (status, headers["retry-after"]) == (503, "7")
                assert error["code"] == "server_full"
            async with here.client() as client:
                assert (await client.say("Room again.")).status == "completed"

    run(scenario)


def test_a_dead_engine_is_refused_before_the_upgrade():
    async def scenario():
        async with gateway() as here:
            here.engine.crash()
            status, headers, error = await upgrade(here)
            assert (status, error["code"]) == (503, "engine_stopped")
            assert "retry-after" in headers

    run(scenario)


def test_a_model_that_only_writes_has_no_rates():
    writing = PhaseSpec(name="text", columns=(PhaseColumn(fill="sampled"),), feeds_text=True)

    async def scenario():
        for spec, rate_hz in ((fake_spec(), 24_000), (fake_spec(phases=(writing,)), None)):
            async with gateway(spec=spec) as here:
                (model,) = json.loads((await here.http("/v1/models"))[2])["data"]
                assert model["sample_rate_hz"] == rate_hz
                assert (model["frame_rate_hz"] is None) == (rate_hz is None)

    run(scenario)

"""The guard over real sockets: before every route, and before the upgrade."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime.access.config import AccessConfig
from realtime.access.guard import KEY_SUBPROTOCOL
from realtime.access.keys import KeyRing
from realtime.errors import ConfigError
from realtime.protocol import REALTIME_PATH, SPEECH_PATH
from tests.realtime.harness import FAST_CONFIG, gateway, http_get, run, until, web_page
from tests.realtime.talk_harness import talk
from tests.realtime.test_http_lane import UPGRADE

KEY = "k3y-" + "a" * 28
OTHER = "0th3r-" + "b" * 26
WRONG = "wr0ng-" + "c" * 26
BEARER = {"Authorization": f"Bearer {KEY}"}


def with_access(**settings):
    settings.setdefault("keys", KeyRing([KEY, OTHER]))
    return replace(FAST_CONFIG, access=AccessConfig(**settings))


async def answer(here, path, **headers):
    """Status, headers and error of a GET."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, told, body = await http_get(here.port, path, named)
    return status, told, json.loads(body)["error"] if status >= 400 else None


async def upgrade(here, path=SPEECH_PATH, **headers):
    """The same of an upgrade request that must be refused before it is one."""
    return await answer(here, path, **UPGRADE, **headers)


@asynccontextmanager
async def opened(here, **options):
    options = {"compression": None, "proxy": None, **options}
    async with connect(f"ws://127.0.0.1:{here.port}{SPEECH_PATH}", **options) as socket:
        yield socket


# Keys.


def test_every_route_wants_a_key_but_signs_of_life_and_the_page(tmp_path):
    """Routes are taken from the app, so that one which is added later is looked at too."""
    config = replace(with_access(), web_demo=web_page(tmp_path))

    async def scenario():
        async with talk(config=config) as here:
            app = here.server._uvicorn.config.app
            paths = [route.path for route in app.routes if getattr(route, "path", "")]
            assert {SPEECH_PATH, REALTIME_PATH, "/v1/models", "/metrics"} <= set(paths)
            for path in [*paths, "/v1/nothing", "/nothing", "/v1/models?model=x"]:
                asks = [answer, upgrade] if path not in ("/healthz", "/readyz") else [upgrade]
                for ask in asks:
                    status, told, error = await ask(here, path)
                    assert (status, error["code"]) == (401, "missing_api_key"), path
                    assert told["www-authenticate"] == "Bearer"
            assert (await upgrade(here, "/"))[0] == 401
            for path in ("/healthz", "/readyz", "/", "/app.js", "/index.html"):
                assert (await http_get(here.port, path))[0] == 200, path

    run(scenario)


def test_a_right_key_opens_http_and_sockets():
    async def scenario():
        async with gateway(with_access()) as here:
            assert (await answer(here, "/v1/models", **BEARER))[0] == 200
            assert (await answer(here, "/metrics", Authorization=f"bearer  {OTHER}"))[0] == 200
            async with here.client(additional_headers=BEARER) as client:
                assert (await client.say("Come in.")).status == "completed"

    run(scenario)


@pytest.mark.parametrize(
    "given", [f"Bearer {WRONG}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xff\xfe" * 9]
)
def test_a_wrong_key_opens_nothing(given):
    async def scenario():
        async with gateway(with_access()) as here:
            for ask in (answer, upgrade):
                status, told, error = await ask(here, "/v1/models", Authorization=given)
                assert (status, error["code"]) == (401, "invalid_api_key")
                assert error["type"] == "invalid_request_error"
                assert "www-authenticate" in told
            assert here.sample("parley_refusals_total", reason="invalid_api_key") == 2
            assert not here.sample("parley_sessions_opened_total")

    run(scenario)


@pytest.mark.parametrize("given", [f"Basic {KEY}", "Bearer", "Bearer ", KEY])
def test_what_is_no_bearer_is_no_key(given):
    async def scenario():
        async with gateway(with_access()) as here:
            status, _, error = await answer(here, "/v1/models", Authorization=given)
            assert (status, error["code"]) == (401, "missing_api_key")

    run(scenario)


def test_a_browser_offers_its_key_as_a_subprotocol_and_never_gets_it_back():
    async def scenario():
        async with gateway(with_access()) as here:
            offers = ["parley.v1", f"{KEY_SUBPROTOCOL}{KEY}", "some-sdk.1.2"]
            for offered in (offers, offers[::-1]):
                async with opened(here, subprotocols=offered) as socket:
                    assert socket.subprotocol == "parley.v1"
            async with opened(here, subprotocols=offers[1:2]) as socket:
                assert socket.subprotocol is None
            wrong = f"parley.v1, {KEY_SUBPROTOCOL}{WRONG}"
            status, told, error = await upgrade(here, Sec_WebSocket_Protocol=wrong)
            assert (status, error["code"]) == (401, "invalid_api_key")
            assert WRONG not in str(told) + str(error)

    run(scenario)


def test_a_key_that_goes_with_an_unknown_subprotocol_is_not_repeated():
    async def scenario():
        async with gateway(with_access()) as here:
            offers = f"nari.v1, {KEY_SUBPROTOCOL}{KEY}"
            status, _, error = await upgrade(here, Sec_WebSocket_Protocol=offers)
            assert (status, error["code"]) == (400, "unknown_subprotocol")
            assert KEY not in str(error)

    run(scenario)


@pytest.mark.parametrize("name", ["api_key", "token", "KEY", "access_token"])
@pytest.mark.parametrize("keys", [KeyRing([KEY]), KeyRing()])
def test_a_key_in_the_url_is_refused_with_the_way_to_send_it(name, keys):
    async def scenario():
        async with gateway(with_access(keys=keys)) as here:
            for ask in (answer, upgrade):
                status, _, error = await ask(here, f"/v1/models?{name}={KEY}", **BEARER)
                assert (status, error["code"]) == (400, "key_in_url")
                assert "Authorization: Bearer" in error["message"]
            assert (await answer(here, "/v1/models?model=key", **BEARER))[0] == 200

    run(scenario)


def test_no_key_gets_into_a_log(caplog):
    async def scenario():
        async with gateway(with_access()) as here:
            await answer(here, f"/v1/models?api_key={KEY}")
            await upgrade(here, f"{SPEECH_PATH}?api_key={KEY}")
            await upgrade(here, Authorization=f"Bearer {WRONG}")
            offers = ["parley.v1", f"{KEY_SUBPROTOCOL}{KEY}"]
            async with opened(here, subprotocols=offers) as socket:
                await socket.recv()
            with pytest.raises(InvalidStatus):
                async with opened(here, subprotocols=[f"{KEY_SUBPROTOCOL}{WRONG}"]):
                    pass

    # The client's own log is the client's business.
    logging.getLogger("websockets.client").setLevel(logging.CRITICAL)
    with caplog.at_level(logging.DEBUG):
        run(scenario)
    assert "refused websocket, invalid_api_key" in caplog.text
    assert KEY not in caplog.text
    assert WRONG not in caplog.text


def test_without_keys_whatever_a_client_gives_is_welcome():
    async def scenario():
        async with gateway() as here:
            offers = ["parley.v1", f"{KEY_SUBPROTOCOL}anything"]
            async with opened(here, subprotocols=offers) as socket:
                assert socket.subprotocol == "parley.v1"
            async with opened(here, additional_headers=BEARER) as socket:
                assert json.loads(await socket.recv())["type"] == "session.created"

    run(scenario)


def test_too_many_wrong_keys_are_not_looked_at_until_time_has_passed():
    config = with_access(trusts_proxy=True, wrong_key_burst=3, wrong_keys_per_minute=6.0)

    async def scenario():
        async with talk(config=config) as here:
            thief = {"X_Forwarded_For": "203.0.113.5", "Authorization": f"Bearer {WRONG}"}
            statuses = [(await upgrade(here, **thief))[0] for _ in range(3)]
            assert statuses == [401] * 3
            status, told, error = await answer(here, "/v1/models", **thief)
            assert (status, error["code"]) == (429, "too_many_wrong_keys")
            assert told["retry-after"] == "10"
            assert error["type"] == "rate_limit_error"
            right = {**thief, "Authorization": f"Bearer {KEY}"}
            assert (await answer(here, "/v1/models", **right))[0] == 429, "not even a right one"
            assert (await answer(here, "/v1/models", **BEARER))[0] == 200, "others do not notice"
            here.clock.now_s += 10
            assert (await answer(here, "/v1/models", **right))[0] == 200

    run(scenario)


def test_asking_without_a_key_or_with_an_old_secret_is_no_wrong_try():
    """A page that goes on with a secret which has expired would lock out its whole address."""
    old = {"Authorization": "Bearer ek_of-yesterday"}

    async def scenario():
        async with gateway(with_access(wrong_key_burst=1)) as here:
            for headers in ({}, old) * 3:
                assert (await answer(here, "/v1/models", **headers))[0] == 401
                assert (await upgrade(here, **headers))[0] == 401
            assert (await answer(here, "/v1/models", **BEARER))[0] == 200

    run(scenario)


# Room.


def test_sockets_of_one_key_are_bounded_and_their_end_gives_room():
    async def scenario():
        async with gateway(with_access(max_open_per_key=2)) as here:
            async with (
                here.client(additional_headers=BEARER),
                here.client(additional_headers=BEARER),
            ):
                status, told, error = await upgrade(here, **BEARER)
                assert (status, error["code"]) == (429, "too_many_open")
                assert told["retry-after"] == str(FAST_CONFIG.retry_after_s)
                assert (await answer(here, "/v1/models", **BEARER))[0] == 429
                assert (await answer(here, "/healthz"))[0] == 200
                other = {"Authorization": f"Bearer {OTHER}"}
                async with here.client(additional_headers=other):
                    pass
            await until(lambda: not here.sample("parley_sessions"))
            async with here.client(additional_headers=BEARER):
                pass

    run(scenario)


def test_sockets_of_one_address_are_bounded():
    config = with_access(keys=KeyRing(), max_open_per_address=1, trusts_proxy=True)

    async def scenario():
        async with gateway(config) as here:
            first = {"X-Forwarded-For": "198.51.100.1, 203.0.113.1"}
            async with here.client(additional_headers=first):
                # What the client itself wrote before the proxy's word does not help it.
                again = {"X_Forwarded_For": "198.51.100.2, 203.0.113.1"}
                assert (await upgrade(here, **again))[0] == 429
                async with here.client(additional_headers={"X-Forwarded-For": "203.0.113.2"}):
                    pass

    run(scenario)


def test_without_a_proxy_nobody_chooses_the_own_address():
    """The server below would take the word of any client on this machine."""
    config = with_access(keys=KeyRing(), max_open_per_address=1)

    async def scenario():
        async with gateway(config) as here, here.client():
            assert (await upgrade(here, X_Forwarded_For="203.0.113.9"))[0] == 429

    run(scenario)


def test_a_refused_request_leaves_no_place_taken():
    config = with_access(max_open_per_key=1, max_open_per_address=1)

    async def scenario():
        async with gateway(config) as here:
            for _ in range(3):
                assert (await upgrade(here, Sec_WebSocket_Protocol="nari.v1", **BEARER))[0] == 400
                assert (await upgrade(here))[0] == 401
                assert (await http_get(here.port, "/v1/nothing", BEARER))[0] == 404
            async with here.client(additional_headers=BEARER):
                pass

    run(scenario)


# Pages.


def test_a_page_from_elsewhere_is_refused_on_every_route_with_a_key_or_without():
    async def scenario():
        async with gateway(with_access()) as here:
            evil = {"Origin": "https://evil.example", **BEARER}
            for path in ("/v1/models", "/metrics", "/"):
                status, _, error = await answer(here, path, **evil)
                assert (status, error["code"]) == (403, "origin_not_allowed")
            status, _, error = await upgrade(here, **evil)
            assert (status, error["code"]) == (403, "origin_not_allowed")
            assert "https://evil.example" in error["message"]

    run(scenario)


def test_our_own_page_and_listed_ones_may():
    config = with_access(keys=KeyRing(), origins=("https://app.example",))

    async def scenario():
        async with gateway(config) as here:
            for origin in (f"http://127.0.0.1:{here.port}", "https://app.example"):
                async with here.client(origin=origin) as client:
                    assert (await client.say("Hello.")).status == "completed"
            with pytest.raises(InvalidStatus, match="403"):
                async with here.client(origin="https://app.example.evil.example"):
                    pass

    run(scenario)


def test_a_listed_page_may_ask_by_http_and_read_a_refusal():
    config = with_access(origins=("https://app.example",))

    async def scenario():
        async with gateway(config) as here:
            page = {"Origin": "https://app.example"}
            status, told, _ = await answer(here, "/v1/models", **page, **BEARER)
            assert (status, told["access-control-allow-origin"]) == (200, page["Origin"])
            status, told, _ = await answer(here, "/v1/models", **page)
            assert (status, told["access-control-allow-origin"]) == (401, page["Origin"])

    run(scenario)


async def preflight(here, origin):
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    lines = [
        "OPTIONS /v1/audio/speech HTTP/1.1", "Host: test", "Connection: close",
        f"Origin: {origin}", "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type", "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    head = (await reader.read()).partition(b"\r\n\r\n")[0].decode().lower()
    writer.close()
    return int(head.split()[1]), head


def test_the_browsers_question_before_a_request_needs_no_key():
    async def scenario():
        async with gateway(with_access(origins=("https://app.example",))) as here:
            status, head = await preflight(here, "https://app.example")
            assert status == 200
            assert "access-control-allow-origin: https://app.example" in head
            assert "authorization" in head
            assert "post" in head
            status, head = await preflight(here, "https://evil.example")
            assert status in (400, 403)
            assert "access-control-allow-origin" not in head

    run(scenario)


# Reach.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "talk.example"])
def test_a_server_that_others_can_reach_wants_keys_or_the_word_that_it_needs_none(host):
    with pytest.raises(ConfigError, match=r"--api-keys FILE .* or --insecure"):
        replace(FAST_CONFIG, host=host)
    replace(with_access(), host=host)
    replace(with_access(keys=KeyRing(), is_insecure=True), host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_server_that_only_this_machine_can_reach_wants_none(host):
    replace(FAST_CONFIG, host=host)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_open_per_key": 0},
        {"max_open_per_address": 0},
        {"wrong_key_burst": 0},
        {"max_client_secrets": 0},
        {"wrong_keys_per_minute": float("inf")},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        AccessConfig(**settings)

"""What a client says of a server that does not let it in."""

from dataclasses import replace

import pytest

from realtime.access.config import AccessConfig
from realtime.access.keys import KeyRing
from realtime.client.speech import ConnectError, SpeechClient, SyncSpeechClient
from realtime.client.talk import TalkClient
from tests.realtime.harness import FAST_CONFIG, gateway, run
from tests.realtime.talk_harness import talk

KEY = "k3y-" + "a" * 28
LOCKED = replace(FAST_CONFIG, access=AccessConfig(keys=KeyRing([KEY])))


def test_a_key_lets_both_clients_in():
    async def scenario():
        async with talk(config=LOCKED) as here:
            url = f"ws://127.0.0.1:{here.port}"
            async with SpeechClient(url, api_key=KEY) as client:
                assert client.session is not None
            async with TalkClient(url, rate_hz=16_000, api_key=KEY) as talker:
                assert talker.session is not None

    run(scenario)


def test_a_server_that_only_speaks_is_told_from_one_that_is_not_parley():
    async def scenario():
        async with gateway() as here:
            talker = TalkClient(f"ws://127.0.0.1:{here.port}", rate_hz=16_000)
            with pytest.raises(ConnectError, match=r"no conversation.*without --no-talk"):
                await talker.connect()

    run(scenario)


@pytest.mark.parametrize(
    ("key", "said"), [(None, "wants an API key"), (KEY[:-1], "does not accept this API key")]
)
def test_a_client_without_the_key_says_how_to_give_it(key, said):
    async def scenario():
        async with gateway(LOCKED) as here:
            client = SpeechClient(f"ws://127.0.0.1:{here.port}", api_key=key)
            with pytest.raises(ConnectError, match=f"{said}.*PARLEY_API_KEY") as caught:
                await client.connect()
            assert caught.value.status == 401
            assert KEY[:-1] not in str(caught.value)

    run(scenario)


def test_a_refusal_is_told_in_the_servers_words():
    async def scenario():
        async with gateway(replace(FAST_CONFIG, max_sessions=1)) as here, here.client():
            client = SpeechClient(f"ws://127.0.0.1:{here.port}")
            with pytest.raises(ConnectError, match="refuses: no room") as caught:
                await client.connect()
            assert caught.value.status == 503

    run(scenario)


def test_the_blocking_client_takes_a_key_too():
    client = SyncSpeechClient("ws://127.0.0.1:1", api_key=KEY)
    with pytest.raises(ConnectError, match="no server answers"), client:
        pass

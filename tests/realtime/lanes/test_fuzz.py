"""Garbled messages by the thousand, to both lanes of conversations: nothing breaks or is left.

What comes back is checked as strictly as everything else on these lanes.
"""

import json
import logging
from dataclasses import replace

import pytest

from realtime.config import SendLimits
from realtime.errors import ProtocolError
from realtime.lanes.openai.client_events import OPENAI_CLIENT_EVENTS
from realtime.lanes.openai.translate import core_event
from realtime.protocol import parse_event
from tests.fakes import fake_spec
from tests.realtime.harness import FAST_CONFIG, run, until
from tests.realtime.lanes.ga_client import ga_client
from tests.realtime.lanes.garbled import OPENAI, PARLEY, messages
from tests.realtime.talk_harness import talk

QUICK = replace(
    FAST_CONFIG,
    max_messages_per_s=1e9,
    message_burst=10**9,
    send=SendLimits(max_events=10**6, high_s=1e6, hard_s=2e6),
)
N_LIVE = 10_000
PIECE = 500


def test_any_message_becomes_an_event_or_a_named_error():
    specs = {"fake": fake_spec()}
    n_good, codes = 0, set()
    for message in messages(OPENAI, 20_000, seed=7):
        try:
            core_event(parse_event(message, OPENAI_CLIENT_EVENTS), specs)
            n_good += 1
        except ProtocolError as fault:
            codes.add(fault.code)
    assert n_good > 2_000
    assert codes >= {"invalid_event", "unknown_field", "missing_field", "invalid_value"}


async def flood(client, lane, mark):
    """Send them all, and read everything that comes back; the server answers to the end."""
    texts = list(messages(lane, N_LIVE, seed=11))
    for start in range(0, N_LIVE, PIECE):
        for text in texts[start : start + PIECE]:
            await client.socket.send(text)
        event_id = f"mark {start}"
        await client.socket.send(
            json.dumps(
                {
                    "type": "conversation.item.retrieve",
                    "item_id": "nobody",
                    "event_id": event_id,
                }
            )
        )
        while await mark() != event_id:
            pass


def no_faults_of_ours(caplog):
    return not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.slow
def test_10_000_messages_to_the_openai_lane(caplog):
    async def scenario():
        async with talk(config=QUICK) as here:
            async with ga_client(here) as client:

                async def mark():
                    event = await client.next()
                    return event["error"]["event_id"] if event["type"] == "error" else None

                await flood(client, OPENAI, mark)
                kinds = {event["type"] for event in client.log}
                assert kinds >= {"session.updated", "response.done", "conversation.item.deleted"}
                created = client.events("response.created")
                await client.send("response.cancel")
                while len(client.events("response.done")) < len(created):
                    await client.next()
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)
    assert no_faults_of_ours(caplog)


@pytest.mark.slow
def test_10_000_messages_to_the_parley_lane(caplog):
    async def scenario():
        async with talk(config=QUICK) as here:
            async with here.client() as client:

                async def mark():
                    event = await client.next()
                    is_error = isinstance(event, dict) and event["type"] == "error"
                    return event["error"]["event_id"] if is_error else None

                await flood(client, PARLEY, mark)
            await until(lambda: not here.sample("parley_sessions"))

    run(scenario)
    assert no_faults_of_ours(caplog)

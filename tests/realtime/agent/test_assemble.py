"""Agents put together from engines and endpoints."""

import asyncio

import numpy as np
import pytest

from realtime.agent import assemble
from realtime.agent.assemble import AgentConfig, Hearing, load_hearing, make_conversing
from realtime.agent.base import Message, ReplyRequest, TextDelta
from realtime.agent.endpoint import EndpointConfig
from realtime.agent.errors import AgentSetupError
from realtime.agent.native import NativeAgent
from realtime.agent.pipeline import PipelineAgent
from realtime.agent.vad import load_vad
from realtime.bridge import EventRelay
from realtime.gateway import Gateway
from realtime.playout import PlayoutClock
from tests.fakes import FakeEngine, fake_spec
from tests.realtime.agent.fake_endpoint import fake_endpoint, text_events
from tests.realtime.harness import FAST_CONFIG, run

LLM = EndpointConfig(url="http://127.0.0.1:9/v1", model="m")


def gateway_of(*tasks: tuple[str, ...], **facts: object) -> Gateway:
    """An engine for each of these tasks, in order."""
    relays = {f"{'-'.join(one)}-{n}": EventRelay() for n, one in enumerate(tasks)}
    engines = {
        name: FakeEngine(relay, spec=fake_spec(name=name, tasks=one, **facts))
        for (name, relay), one in zip(relays.items(), tasks, strict=True)
    }
    return Gateway(engines, relays, FAST_CONFIG)


@pytest.fixture(scope="module")
def hearing() -> Hearing:
    return load_hearing(AgentConfig())


def test_what_hears_is_loaded_with_its_licences(hearing: Hearing):
    licences = {"silero-vad": "MIT", "whisper tiny.en": "MIT"}
    if hearing.judge is not None:
        licences["smart-turn v3.2"] = "BSD-2-Clause"
    assert hearing.licences == licences


def test_an_endpoint_that_transcribes_saves_loading_whisper():
    loaded = load_hearing(AgentConfig(stt=EndpointConfig(url="http://127.0.0.1:9/v1", model="w")))
    assert loaded.whisper is None


def test_every_model_that_speaks_gets_an_agent_of_its_name(hearing: Hearing):
    gateway = gateway_of(("speak",), ("text",), ("speak",))
    made = make_conversing(gateway, AgentConfig(), hearing)
    assert list(made.agents) == ["speak-0", "speak-2"]
    agent = made.agents["speak-2"]
    assert isinstance(agent, PipelineAgent)
    assert agent.spec.name == "speak-2"
    assert not agent.calls_tools
    asyncio.run(agent.close())


def test_a_model_that_hears_answers_by_itself(hearing: Hearing):
    gateway = gateway_of(("converse",), takes_audio=True)
    made = make_conversing(gateway, AgentConfig(), hearing)
    assert isinstance(made.agents["converse-0"], NativeAgent)


def test_a_model_that_reads_out_and_answers_answers_by_itself(hearing: Hearing):
    """Nothing that writes is loaded for it."""
    gateway = gateway_of(("speak", "converse"), takes_audio=True)
    made = make_conversing(gateway, AgentConfig(), hearing)
    assert isinstance(made.agents["speak-converse-0"], NativeAgent)


def test_a_model_that_answers_words_is_given_what_hears(hearing: Hearing):
    agent = make_conversing(gateway_of(("converse",)), AgentConfig(), hearing).agents["converse-0"]
    assert isinstance(agent, NativeAgent)
    assert agent.needs_transcript
    assert agent.can_transcribe
    assert agent.transcribed_languages
    asyncio.run(agent.close())


@pytest.mark.parametrize(
    ("tasks", "message"), [([("speak",)], "--llm-url"), ([("text",)], "can speak")]
)
def test_a_missing_stage_is_one_clear_line(tasks, message: str, hearing: Hearing):
    with pytest.raises(AgentSetupError, match=message):
        make_conversing(gateway_of(*tasks), AgentConfig(), hearing)


def test_an_endpoint_writes_where_one_is_named(hearing: Hearing):
    async def scenario():
        async with fake_endpoint(text_events("Good day.")) as running:
            config = AgentConfig(llm=EndpointConfig(url=running.url, model="big"))
            made = make_conversing(gateway_of(("speak",)), config, hearing)
            agent = made.agents["speak-0"]
            assert agent.calls_tools
            item = Message(item_id="u", role="user", text="Hello?")
            request = ReplyRequest(items=(item,), seed=0, asked_s=0.0, wants_audio=False)
            reply = agent.reply(request, PlayoutClock())
            assert await reply.next_event() == TextDelta(text="Good day.")
            while await reply.next_event() is not None:
                pass
            assert running.app.requests[0].json["model"] == "big"
            await agent.close()

    run(scenario)


def test_an_endpoint_transcribes_where_one_is_named(monkeypatch: pytest.MonkeyPatch):
    async def scenario():
        monkeypatch.setattr(assemble, "voice_probabilities", lambda vad: lambda pcm: [])
        config = AgentConfig(stt=LLM, llm=LLM)
        gateway = gateway_of(("speak",))
        agent = make_conversing(gateway, config, Hearing(vad=load_vad())).agents["speak-0"]
        running = agent.transcribe(np.zeros(16_000, np.float32), language=None)
        event = await running.next_event()
        assert event is not None
        assert event.text == ""
        await agent.close()
        gateway.workers.close()

    run(scenario)

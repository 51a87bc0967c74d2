"""Each kind of caller against a gateway: how its visit ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from loadtest.client_health import ClientHealth
from loadtest.target import Target
from loadtest.traffic.conversing import TalkCaller
from loadtest.traffic.ears import Ears
from loadtest.traffic.recordings import RATE_HZ, Recordings, load_recordings, recording_of
from loadtest.traffic.scenarios import Scenario
from loadtest.traffic.schedule import Call
from loadtest.traffic.setting import Setting
from loadtest.traffic.speaking import SpeechCaller
from loadtest.traffic.texts import texts
from realtime.config import GatewayConfig, SendLimits
from tests.fakes import fake_spec
from tests.realtime.harness import FAST_CONFIG, gateway, run, until
from tests.realtime.talk_harness import LOUD, ScriptedAgent, talk

SECONDS_A_CHARACTER = 0.01
"""Of the fake engine."""
STEP_S = 0.02
"""Between its chunks of 80 ms: a caller that acts in the middle finds one."""
QUICK = Scenario(
    name="quick", shares={"whole": 1.0}, think_s=0.01, turns=2, heard_s=(0.02, 0.05), stall_s=1.0
)
IMPATIENT = replace(
    FAST_CONFIG, send=replace(SendLimits(), blocked_s=0.2, hard_blocked_s=0.1, socket_bytes=4096)
)


def call(part: str, seed: int = 1) -> Call:
    return Call(number=0, at_s=0.0, part=part, seed=seed)


def recordings(codec="opus") -> Recordings:
    """Short and loud: ears that go by loudness take it for speech."""
    noise = np.random.default_rng(0).uniform(-LOUD, LOUD, RATE_HZ // 2).astype(np.float32)
    one = recording_of("Why?", noise, codec)
    silence = recording_of("", np.zeros(480, np.float32), codec)
    return Recordings(
        codec=codec, questions=(one,), interruptions=(one,), silence=silence.frames[0]
    )


@asynccontextmanager
async def setting(port: int, scenario: Scenario = QUICK, codec="opus"):
    ears = Ears()
    try:
        yield Setting(
            target=Target(url=f"ws://127.0.0.1:{port}"),
            scenario=scenario,
            recordings=recordings(codec),
            ears=ears,
            health=ClientHealth(),
            zero_s=time.monotonic(),
            clock=time.monotonic,
        )
    finally:
        ears.close()


def speak(
    part: str,
    *,
    seed: int = 1,
    step_s: float = STEP_S,
    scenario: Scenario = QUICK,
    rate_hz: int = RATE_HZ,
    config: GatewayConfig = FAST_CONFIG,
):
    """A visit to the speech lane. Gives its record and the fake's last stream."""

    async def scene():
        async with (
            gateway(config, step_s=step_s, spec=fake_spec(rate_hz=rate_hz)) as server,
            setting(server.port, scenario) as given,
        ):
            caller = SpeechCaller(call(part, seed), given)
            await caller.run()
            await until(lambda: server.engine.n_open == 0 and server.relay.n_streams == 0)
            await until(lambda: server.sample("parley_sessions") == 0)
            [found] = caller.records
            return found, server.engine.streams

    return run(scene)


def test_a_whole_text_is_heard_exactly():
    found, streams = speak("whole", step_s=0.0)
    assert (found.outcome, found.kind) == ("completed", "speech")
    n_characters = sum(len(one.plan.text) for one in streams)
    assert found.heard.audio_s == pytest.approx(n_characters * SECONDS_A_CHARACTER)
    assert found.connect_s > 0
    assert found.asked_s < found.heard.first_packet_s <= found.heard.first_sound_s
    assert found.heard.first_packet_s <= found.heard.last_packet_s
    assert found.cancel_to_silence_s is None


def test_the_same_seed_says_the_same():
    spoken = [
        [one.plan.text for one in speak("whole", seed=seed, step_s=0.0)[1]] for seed in (3, 3, 5)
    ]
    assert spoken[0] == spoken[1] != spoken[2]


def test_a_text_may_come_word_by_word():
    found, streams = speak("streamed", step_s=0.0)
    assert found.outcome == "completed"
    assert "".join(" ".join(one.plan.text for one in streams).split()) in {
        "".join(one.split()) for one in texts()
    }


def test_a_cancel_is_timed_and_cuts():
    found, streams = speak("cancel")
    assert found.outcome == "cut"
    assert streams[0].is_aborted
    assert 0 <= found.cancel_to_silence_s <= found.cancel_to_done_s
    assert found.heard.audio_s < len(streams[0].plan.text) * SECONDS_A_CHARACTER
    assert found.listened is not None


def test_who_hangs_up_leaves_no_stream_behind():
    found, streams = speak("hang_up")
    assert found.outcome == "left"
    assert streams[0].is_aborted
    assert found.listened is None


def test_a_slow_reader_is_cut_off_and_leaves_no_stream_behind():
    """It asks for PCM and reads nothing: the server's patience ends first."""
    patient = replace(QUICK, stall_s=3.0)
    # At 8 kHz the fake speaks for three times as long: more than buffers hold.
    found, streams = speak(
        "slow_reader", step_s=0.005, scenario=patient, rate_hz=8000, config=IMPATIENT
    )
    assert found.outcome == "slow"
    assert "broke off" in found.detail or "1013" in found.detail
    assert found.listened is None
    assert streams


def test_a_slow_reader_that_wakes_up_in_time_hears_the_rest():
    found, _ = speak("slow_reader", scenario=replace(QUICK, stall_s=0.05))
    assert (found.outcome, found.detail) == ("slow", "")
    assert found.heard.audio_s > 1.0


def test_a_full_server_is_a_refusal():
    async def scene():
        async with (
            gateway(replace(FAST_CONFIG, max_sessions=1)) as server,
            server.client(),
            setting(server.port) as given,
        ):
            caller = SpeechCaller(call("whole"), given)
            await caller.run()
            return caller.records

    [found] = run(scene)
    assert found.outcome == "refused"
    assert found.detail


def test_nobody_there_is_an_error():
    async def scene():
        async with setting(1) as given:
            caller = SpeechCaller(call("whole"), given)
            await caller.run()
            return caller.records

    [found] = run(scene)
    assert found.outcome == "lost"


def test_what_is_cut_by_the_end_of_the_run_is_said():
    async def scene():
        async with gateway(FAST_CONFIG, step_s=5.0) as server, setting(server.port) as given:
            caller = SpeechCaller(call("whole"), given)
            task = asyncio.create_task(caller.run())
            await until(lambda: server.engine.n_open)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            server.engine.step()
            return caller.records

    [found] = run(scene)
    assert found.outcome == "unfinished"


def converse(part: str, *, agent=None, seed: int = 1, codec="opus", scenario: Scenario = QUICK):
    """A conversation with a scripted agent. Gives the records, and what the agent was asked."""

    async def scene():
        async with (
            talk(agent, config=FAST_CONFIG, clock=time.monotonic) as server,
            setting(server.port, scenario, codec) as given,
        ):
            caller = TalkCaller(call(part, seed), given)
            await caller.run()
            await until(lambda: server.sample("parley_sessions") == 0)
            return caller.records, server.agent, given.health

    return run(scene)


@pytest.mark.parametrize("codec", ["opus", "pcm16"])
def test_questions_are_asked_and_answers_heard(codec):
    records, agent, health = converse("talk", codec=codec)
    assert 1 <= len(records) == len(agent.replies) <= QUICK.turns
    for found in records:
        assert (found.outcome, found.kind) == ("completed", "answer")
        assert found.heard.audio_s == pytest.approx(0.5)
        # From the question's last sound: the server waits for silence first.
        assert found.first_sound_in_s > 0.1
    assert records[0].connect_s is not None
    assert len(agent.transcriptions[0].pcm) > 16_000 * 0.4
    assert len(health.microphone_lags_s) > 50


class TalkativeAgent(ScriptedAgent):
    """Answers for six seconds at first, then shortly."""

    def reply(self, request, playout):
        one = super().reply(request, playout)
        one.say("A story without an end. ", 6.0 if len(self.replies) == 1 else 0.5)
        one.end()
        return one


def test_an_answer_is_spoken_over():
    records, agent, _ = converse("barge_in", agent=TalkativeAgent(answer=None), seed=1,
                                 scenario=replace(QUICK, turns=1))  # fmt: skip
    assert len(agent.replies) == 2
    assert [found.outcome for found in records] == ["cut", "completed"]
    assert records[0].heard.audio_s < 6.001
    assert 0 < records[0].cancel_to_silence_s < 5.0
    assert records[1].cancel_to_silence_s is None


def test_who_hangs_up_in_an_answer_leaves_nothing_behind():
    scenario = replace(QUICK, turns=1)
    agent = TalkativeAgent(answer=None)
    records, agent, _ = converse("talk_hang_up", agent=agent, scenario=scenario)
    assert records[-1].outcome == "left"
    assert agent.replies[-1].is_cancelled


def test_an_agent_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr("loadtest.traffic.conversing.ANSWER_TIMEOUT_S", 0.3)
    [found], _, _ = converse("talk", agent=ScriptedAgent(words=""))
    assert found.outcome == "failed"
    assert "no answer came" in found.detail


def test_shipped_recordings_hold_speech():
    shipped = load_recordings("opus")
    assert len(shipped.questions) >= 8
    assert len(shipped.interruptions) >= 3
    for one in (*shipped.questions, *shipped.interruptions):
        assert 0 <= one.onset_s < 0.3
        assert 0.8 < one.end_s < 4.0
        assert one.end_s <= len(one.frames) * 0.02

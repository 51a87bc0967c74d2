"""A conversation with `glm4-voice` over the WebSocket: heard, answered, and gone on from."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from models.glm4_voice.config import N_FRAMES, SPEECH_RUN
from models.glm4_voice.model import load
from models.spec import PHASE_COLUMN
from tests.models.glm4_voice.tiny import make_checkpoint
from tests.realtime.agent.test_native import Watched, ask, native
from tests.realtime.harness import run
from tests.realtime.talk_harness import PUSH_TO_TALK

CONFIG = EngineConfig(max_streams=2, lead_s=1000.0)


def test_two_turns_are_heard_and_answered(tmp_path, monkeypatch):
    """Text and sound arrive, at the rate that was asked for; the second turn runs what is new."""
    model = load(make_checkpoint(tmp_path))
    plain, counts = model.constrain, []

    def constrain(state, logits, feed):
        """One round of text and speech, then the end."""
        (own,) = plain(state, logits, feed)
        is_over = (state[:, PHASE_COLUMN] != 1) & (state[:, N_FRAMES] >= SPEECH_RUN)
        ends = torch.zeros_like(own)
        ends[:, model.config.ids.ends[1]] = 1e9
        return [own + ends * is_over.unsqueeze(1)]

    monkeypatch.setattr(model, "constrain", constrain)
    backbone = model.backbone
    monkeypatch.setattr(
        model,
        "backbone",
        lambda x, positions, attention: counts.append(len(x)) or backbone(x, positions, attention),
    )
    watched = Watched(model)

    async def scenario():
        server = native(toy=watched, config=CONFIG)
        async with server as (here, _), here.client(audio=PUSH_TO_TALK) as client:
            await client.update(options={"seed": 1})
            answers, prefilled = [], []
            for _ in range(2):
                counts.clear()
                await ask(client)
                answers.append(await client.done())
                prefilled.append(sum(n for n in counts if n > 1))
            return answers, prefilled, client.frames(1), client.frames(2)

    (first, second), prefilled, *frames = run(scenario)
    for answer in (first, second):
        assert answer["status"] == "completed"
        (part,) = answer["output"][0]["content"]
        assert part["transcript"]
        n_frames = answer["usage"]["n_frames"]
        assert n_frames >= SPEECH_RUN
        # 80 ms each, and no more than a sample of rounding from 22.05 kHz to the client's rate.
        assert abs(answer["usage"]["audio_ms"] - 80 * n_frames) < 0.1
    assert all(frames)
    heard, again = watched.asked
    assert heard.history is None
    assert again.history is not None
    assert not again.messages
    n_first = len(watched._toy.plan(heard).ids)
    assert prefilled[0] == n_first
    assert len(again.history) > n_first
    assert prefilled[1] < n_first, "what was said before was not run again"

"""A conversation with `step-audio2` over the WebSocket: what was said before is heard again."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from models.step_audio2.model import load
from tests.models.checkpoints import made
from tests.realtime.agent.test_native import Watched, ask, native
from tests.realtime.harness import run
from tests.realtime.talk_harness import PUSH_TO_TALK

CONFIG = EngineConfig(max_streams=2, lead_s=1000.0)
WORDS = "Yes, I am."
N_ROWS = 40


def test_two_turns_are_heard_and_answered(monkeypatch):
    """Text and sound arrive; the second turn knows the first, and runs only what is new."""
    model = load(made("step-audio2"))
    ids = model.config.ids
    words = model.tokenizer.encode(WORDS, add_special_tokens=False).ids
    given = {**dict(enumerate(words)), N_ROWS: ids.spoken, N_ROWS + 1: ids.end}
    plain, n_rows, counts = model.advance, [], []

    def advance(state, drawn, feed):
        """Words, then codes, then the end."""
        codes = drawn.clamp(ids.first_code, ids.first_code + model.config.n_codes - 1)
        said = torch.full_like(drawn, given.get(len(n_rows), 0))
        advanced = plain(state, said if len(n_rows) in given else codes, feed)
        n_rows.append(len(drawn))
        return advanced

    backbone = model.backbone
    monkeypatch.setattr(model, "advance", advance)
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
                n_rows.clear()
                counts.clear()
                await ask(client)
                answers.append(await client.done())
                prefilled.append(sum(n for n in counts if n > 1))
            return answers, prefilled, client.frames(1), client.frames(2)

    answers, prefilled, *sound = run(scenario)
    for answer in answers:
        assert answer["status"] == "completed"
        (part,) = answer["output"][0]["content"]
        assert part["transcript"] == WORDS
        assert answer["usage"]["n_frames"] == N_ROWS - len(words)
        assert answer["usage"]["audio_ms"] == 40 * answer["usage"]["n_frames"]
    assert all(sound)
    first, second = (watched._toy.plan(request) for request in watched.asked)
    heard = first.embeds[first.embed_mask]
    assert len(heard) > 0
    assert torch.equal(second.embeds[second.embed_mask][: len(heard)], heard)
    text = model.tokenizer.decode(second.ids[:, 0].tolist(), skip_special_tokens=False)
    assert f"<|BOT|>assistant\n{WORDS}<|EOT|>" in text
    assert prefilled[0] == len(first.ids)
    assert prefilled[1] < len(second.ids), "what was said before was not run again"

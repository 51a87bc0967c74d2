"""Streams and limits for the tests of the policy: 10 frames a second, one row a frame."""

from __future__ import annotations

from engine.config import EngineConfig, Limits
from engine.costs import StepCosts
from engine.stream import Stream
from engine.types import StreamId
from models.spec import CodecSpec, FrameSpec

RATE_HZ = 10_000
FRAME = FrameSpec(n_codebooks=1, frame_rate_hz=10.0, sample_rate_hz=RATE_HZ, samples_per_frame=1000)
CODEC = CodecSpec(chunk_frames=(1, 2, 4, 8), left_context_frames=2, max_batch=4)


def limits(codec: CodecSpec = CODEC, **settings) -> Limits:
    """Engine settings as given, the rest as by default; no gateway that holds audio."""
    config = EngineConfig(**{"held_s": 0.0, **settings})
    return Limits(config=config, frame=FRAME, codec=codec)


def fast_costs() -> StepCosts:
    """A device of 1 ms a call and 10 us a row, prompt row or frame."""
    costs = StepCosts(CODEC.left_context_frames)
    for line in (costs.decode, costs.prefill, costs.chunk):
        line.calibrate([(1, 1.01e-3), (101, 2.01e-3)])
    return costs


def startup(stream_id: int = 1, *, asked_s: float = 0.0, n_prompt=(4,), **fields) -> Stream:
    """A stream that has not made a sound; its prompt has not been run."""
    return Stream(
        stream_id=StreamId(stream_id),
        asked_s=asked_s,
        max_frames=100,
        n_prompt_rows=list(n_prompt),
        **fields,
    )


def playing(stream_id: int, *, slack_s: float, now_s: float = 100.0, **fields) -> Stream:
    """A stream whose client plays; what it was sent lasts for `slack_s` more."""
    sent_s = max(slack_s, 0.0) + 5.0
    return Stream(
        stream_id=StreamId(stream_id),
        asked_s=0.0,
        max_frames=1000,
        n_prompt_rows=[4],
        n_prefilled=[4],
        n_rows=50,
        frames_ready=fields.pop("frames_ready", 50),
        frames_decoded=50,
        chunk_idx=20,
        first_sent_s=now_s + slack_s - sent_s,
        sent_s=sent_s,
        samples_sent=round(sent_s * RATE_HZ),
        **fields,
    )

"""A server whose answers cost nothing: a tone that is there already, at the pace of a listener.

    python -m loadtest.bench.tone_server      prints its address, serves until SIGTERM

Asked with a number, it answers with so many seconds. What such a server takes is the gateway's own:
`loadtest.bench.lanes` measures it. The engine runs `toy-tone`, and is asked for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from realtime.agent.base import AudioDelta, Message, ReplyDone, ReplyEvent, ReplyRequest, TextDelta
from realtime.compose import Talk, running_engines
from realtime.config import GatewayConfig
from realtime.conversation.conversing import Conversing
from realtime.gateway import Gateway
from realtime.playout import PlayoutClock
from realtime.server import run

if TYPE_CHECKING:
    from models.spec import ModelSpec
    from realtime.agent.base import Transcription

Pcm = npt.NDArray[np.float32]

MODEL: Final = "toy-tone"
TONE_HZ: Final = 325.0
"""Whole turns in a chunk, so that chunks join without a click."""
CHUNK_S: Final = 0.16
"""Two frames of the toy: what an engine gives at a time to a listener."""
LEAD_S: Final = EngineConfig().lead_s
"""How far an engine runs ahead of the listener."""
TEXT: Final = "A tone."


class ToneAgent:
    """Implements `realtime.agent.base.Agent`.

    Args:
        spec: of the model that it is taken for.
    """

    name = MODEL
    needs_transcript = False
    can_transcribe = False
    transcribed_languages = ()
    calls_tools = False

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        places = np.arange(round(CHUNK_S * spec.frame.sample_rate_hz))
        turns = places * TONE_HZ / spec.frame.sample_rate_hz
        self._chunk: Pcm = (0.3 * np.sin(2 * np.pi * turns)).astype(np.float32)

    def transcribe(self, pcm: Pcm, *, language: str | None) -> Transcription:
        """Never called: `can_transcribe` is False."""
        raise AssertionError("it makes no transcripts")

    def reply(self, request: ReplyRequest, playout: PlayoutClock) -> ToneReply:
        """As many seconds as the last message says."""
        texts = [item.text for item in request.items if isinstance(item, Message) and item.text]
        return ToneReply(self._chunk, round(float(texts[-1]) / CHUNK_S), playout)

    def reciting(self, text: str) -> None:
        """Never: it knows one tone."""

    async def close(self) -> None:
        """Nothing is held."""


class ToneReply:
    """One answer: `n_chunks` times the same chunk, never further ahead than an engine would be."""

    def __init__(self, chunk: Pcm, n_chunks: int, playout: PlayoutClock) -> None:
        self._chunk = chunk
        self._n_left = n_chunks
        self._playout = playout
        self._has_text = False
        self._is_over = False

    async def next_event(self) -> ReplyEvent | None:
        """See `realtime.agent.base.Reply`."""
        if self._is_over:
            return None
        if not self._has_text:
            self._has_text = True
            return TextDelta(text=TEXT)
        if not self._n_left:
            self._is_over = True
            return ReplyDone()
        await asyncio.sleep(max(0.0, self._playout.ahead_s(time.monotonic()) - LEAD_S))
        self._n_left -= 1
        return AudioDelta(pcm=self._chunk, text_end=0 if self._n_left else len(TEXT))

    def cancel(self) -> None:
        """Nothing more."""
        self._is_over = True

    def set_paused(self, is_paused: bool) -> None:
        """Its pace is the playout's, which stands still meanwhile."""

    def report_playout(self, heard_s: float, now_s: float) -> None:
        """Nothing depends on it."""


class DeafDetector:
    """Implements `VoiceDetector` and `VoiceTrack`: nobody ever speaks."""

    def open_track(self) -> DeafDetector:
        """Tracks have no state."""
        return self

    async def probabilities(self, pcm: Pcm) -> Sequence[float]:
        """Nothing is a voice."""
        return [0.0] * len(pcm)


def main() -> None:
    """Serve on a free port of this machine."""

    def converse(gateway: Gateway) -> Conversing:
        agent = ToneAgent(gateway.specs[MODEL])
        return Conversing(agents={MODEL: agent}, detector=DeafDetector())

    with running_engines([MODEL], EngineConfig(max_streams=1), threads=1) as engines:
        talking = replace(engines, talk=Talk(converse=converse, licences={}))
        run(
            talking.app(GatewayConfig(port=0)),
            on_ready=lambda port: print(f"http://127.0.0.1:{port}", flush=True),
        )


if __name__ == "__main__":
    main()

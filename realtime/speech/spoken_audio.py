"""What a speaker's segments sound like: engine streams and pauses as one line of PCM.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from engine.types import Pcm, StreamFinished
from models.spec import ModelSpec
from models.text.breaks import Pause
from realtime.config import GatewayConfig
from realtime.speech.errors import ResponseFailedError, failure_of
from realtime.speech.segments import Segment, SpokenSegment
from realtime.speech.speaker import Speaker

SILENCE_PIECE_S: Final = 1.0
"""A long pause comes in pieces, so that it can be cancelled and waits for a slow client."""


class SpokenAudio:
    """Audio of one response in order of speech.

    Args:
        speaker: whose segments are heard; its `run` goes on beside this.
        spec: of the model that speaks.
        config: of the gateway.
        is_paused: whether the client reads too slowly now.
    """

    def __init__(
        self,
        speaker: Speaker,
        spec: ModelSpec,
        config: GatewayConfig,
        is_paused: Callable[[], bool],
    ) -> None:
        self._speaker = speaker
        self._spec = spec
        self._config = config
        self._is_paused = is_paused
        self._segment: Segment | None = None
        self._n_silence = 0
        self._n_samples = 0
        self._n_ended_characters = 0
        self.n_prompt_rows = 0
        self._n_ended_frames = 0
        self.n_units_cut = 0
        self.is_starved = False
        """The engine has long been silent for want of text."""

    async def next_chunk(self) -> Pcm | None:
        """The next samples, float32 `(n,)` at the model's rate; None at the end.

        Raises:
            ResponseFailedError: a stream failed, or the engine says nothing any more.
        """
        while True:
            if self._segment is None and not await self._start_segment():
                return None
            pcm = await self._next_of_segment()
            if pcm is not None:
                self._n_samples += len(pcm)
                return pcm
            self._segment = None

    @property
    def n_characters(self) -> float:
        """Characters of the units whose audio `next_chunk` has given (a guess within a unit)."""
        if not isinstance(self._segment, SpokenSegment):
            return self._n_ended_characters
        segment = self._segment
        whole_s = self._speaker.expected_s(segment)
        part = min(1.0, self._given_s(segment) / whole_s) if whole_s > 0 else 0.0
        return segment.n_before + part * segment.n_characters

    @property
    def n_frames(self) -> int:
        """Codec frames that came, those of a unit that was broken off included."""
        if not isinstance(self._segment, SpokenSegment):
            return self._n_ended_frames
        return self._n_ended_frames + self._n_frames_of(self._segment)

    def _n_frames_of(self, segment: SpokenSegment) -> int:
        return segment.feed.n_samples // self._spec.frame.samples_per_frame

    def _given_s(self, segment: SpokenSegment) -> float:
        """Seconds of the segment that have been given."""
        return self._n_samples / self._rate_hz - (segment.start_s or 0.0)

    async def _start_segment(self) -> bool:
        self._segment = await self._speaker.next_segment()
        if self._segment is None:
            return False
        self._speaker.on_started(self._segment, self._n_samples / self._rate_hz)
        if isinstance(self._segment, Pause):
            self._n_silence = round(self._segment.seconds * self._rate_hz)
        return True

    async def _next_of_segment(self) -> Pcm | None:
        segment = self._segment
        if isinstance(segment, SpokenSegment):
            return await self._next_of_stream(segment)
        n_samples = min(self._n_silence, round(SILENCE_PIECE_S * self._rate_hz))
        self._n_silence -= n_samples
        return np.zeros(n_samples, dtype=np.float32) if n_samples else None

    async def _next_of_stream(self, segment: SpokenSegment) -> Pcm | None:
        pcm = await self._await_chunk(segment)
        is_over = pcm is not None and self._given_s(segment) >= segment.budget_s
        if pcm is not None and not is_over:
            return pcm
        self._n_ended_frames += self._n_frames_of(segment)
        self._n_ended_characters = segment.n_before + segment.n_characters
        if is_over:
            self.n_units_cut += 1
            self._speaker.cut(segment)
        else:
            self._end_stream(segment)
        return None

    def _end_stream(self, segment: SpokenSegment) -> None:
        """Take the outcome of a stream that has given all its audio."""
        outcome = segment.feed.outcome
        if not isinstance(outcome, StreamFinished):
            assert outcome is not None, "a feed without more chunks has ended"
            raise failure_of(outcome)
        if outcome.reason == "aborted":
            raise ResponseFailedError("engine_aborted", "the engine ended the stream")
        self.n_prompt_rows += outcome.n_prompt_rows
        self.n_units_cut += outcome.reason == "length"
        self._speaker.on_ended(segment)

    async def _await_chunk(self, segment: SpokenSegment) -> Pcm | None:
        while True:
            try:
                pcm = await segment.feed.next_chunk(self._config.engine_silence_s)
                self.is_starved = False
                return pcm
            except TimeoutError:
                # A paused stream is silent because we asked for it; a model that takes text while
                # it speaks, because the client has more to say. Then the client's idle time counts.
                self.is_starved = self._speaker.is_streaming and self._speaker.is_out_of_text
                if not self.is_starved and not self._is_paused():
                    message = f"no answer of the engine in {self._config.engine_silence_s:g} s"
                    raise ResponseFailedError("engine_timeout", message) from None

    @property
    def _rate_hz(self) -> int:
        return self._spec.frame.sample_rate_hz

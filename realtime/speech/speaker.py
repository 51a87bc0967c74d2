"""One response's text to engine streams: cut, planned, opened one after another without a gap.

Event loop only; planning runs in the worker pool. What comes out is a line of segments in the order
of speech: engine streams and pauses. The engine runs each as its own stream; the next is opened a
little before the one before it has been heard, with the time from which it will be played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from engine.errors import EngineStoppedError
from models.text.breaks import Pause
from realtime.bridge import EngineBridge
from realtime.config import GatewayConfig
from realtime.playout import PlayoutClock
from realtime.settings import MAX_SEED, SpeechSettings
from realtime.speech.errors import ResponseFailedError
from realtime.speech.planner import Planner
from realtime.speech.segments import Segment, SpokenSegment, WordStream
from realtime.speech.text_line import TextLine
from realtime.speech.text_units import (
    TextSegmenter,
    TextUnit,
    WholeText,
    WordHolder,
    is_speakable,
    pieces_of,
    split_unit,
)
from realtime.workers import Workers

if TYPE_CHECKING:
    from models.base import PromptPlan

PROMPT_TOO_LONG: Final = "prompt_too_long"
SEED_STEP: Final = 1_000_003
"""Units of one response draw differently, and the same again with the same seed."""
MAX_OPEN_STREAMS: Final = 2
"""The one that is being sent and the next: an engine that is far ahead must not fill our memory."""
GUESSED_S_PER_CHARACTER: Final = 0.065
"""Of read English; only a first guess of how long a unit will be, corrected by each that ends."""


class Speaker:
    """The engine's side of one response.

    Args:
        bridge: the engine.
        settings: voice, language and options, checked.
        seed: of the response.
        workers: where plans are made.
        config: of the gateway.
        clock: monotonic seconds.
        playout: what the client has heard of this response.
        is_eager: all of the text is there, and its audio wanted as fast as there is room; a stream
            has a deadline only where a listener would soon wait for it.
    """

    def __init__(
        self,
        *,
        bridge: EngineBridge,
        settings: SpeechSettings,
        seed: int,
        workers: Workers,
        config: GatewayConfig,
        clock: Callable[[], float],
        playout: PlayoutClock,
        is_eager: bool = False,
    ) -> None:
        self._bridge = bridge
        self._planner = Planner(bridge, settings, workers)
        self._seed = seed
        self._config = config
        self._clock = clock
        self._playout = playout
        self._is_answer = bridge.spec.answers(settings.options)
        # One stream for the whole text would be held to a listener's pace from end to end.
        self.is_streaming = (
            bridge.spec.streams_text(settings.options) and not is_eager and not self._is_answer
        )
        """The model is given words while it speaks, and not whole units."""
        sounds = bridge.spec.sound_tags
        self._cutter: WordHolder | TextSegmenter | WholeText
        if self._is_answer:
            self._cutter = WholeText(sounds)
        elif self.is_streaming:
            self._cutter = WordHolder(sounds)
        else:
            self._cutter = TextSegmenter(config.text, sounds)
        self._line = TextLine()
        self._segments: asyncio.Queue[Segment | None] = asyncio.Queue()
        self._open: list[SpokenSegment] = []
        self._has_ended = asyncio.Event()
        self._pauses_s = 0.0
        self._n_units = 0
        self._n_characters = 0
        self._s_per_character = GUESSED_S_PER_CHARACTER
        self._is_eager = is_eager
        self._is_paced = settings.output.is_paced and not is_eager
        self._is_paused = False
        self._asked_s = clock()

    # Text side.

    def append(self, text: str) -> None:
        """More text."""
        self._put(self._cutter.push(text))

    def flush(self) -> None:
        """Speak what has come. An answer is made once: when all of the text is there."""
        if not self._is_answer:
            self._put(self._cutter.flush())

    def end(self) -> None:
        """No more text."""
        self._put(self._cutter.flush())
        self._line.end()

    def _put(self, units: Sequence[TextUnit | str | Pause]) -> None:
        self._line.put(one.text if isinstance(one, TextUnit) else one for one in units)

    @property
    def is_waiting_for_text(self) -> bool:
        """Whether nothing can be spoken until the client sends more."""
        return self.is_out_of_text and not self._open

    @property
    def is_out_of_text(self) -> bool:
        """Whether all text that came is with the engine, and more may come."""
        return self._line.is_waiting

    # Engine side.

    async def run(self) -> None:
        """Open everything, in order, until the text ends.

        Raises:
            ResponseFailedError: a unit cannot be planned or opened.
        """
        if self.is_streaming:
            await self._stream_words()
        else:
            while (unit := await self._line.next()) is not None:
                if isinstance(unit, Pause):
                    self._put_pause(unit)
                else:
                    await self._speak_unit(unit, self._n_characters)
                    self._n_characters += len(unit)
        self._segments.put_nowait(None)

    async def next_segment(self) -> Segment | None:
        """The next thing to be heard; None at the end."""
        return await self._segments.get()

    def on_started(self, segment: Segment, start_s: float) -> None:
        """The listener's time line has come to a segment, `start_s` seconds into the response."""
        if isinstance(segment, Pause):
            self._pauses_s -= segment.seconds
            return
        segment.start_s = start_s
        now_s = self._clock()
        # Corrects the guess that the stream was opened with.
        self._report(segment, 0.0, now_s + max(0.0, start_s - self._playout.heard_s(now_s)))

    def on_ended(self, segment: SpokenSegment) -> None:
        """All audio of a segment has been taken."""
        self._close(segment)
        if segment.n_characters and segment.feed.received_s:
            self._s_per_character = segment.feed.received_s / segment.n_characters

    def cut(self, segment: SpokenSegment) -> None:
        """A segment has lasted too long: its stream ends now, the next one is spoken."""
        self._bridge.abort(segment.feed)
        self._close(segment)

    def set_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        self._is_paused = is_paused
        for segment in self._open:
            self._bridge.set_paused(segment.feed, is_paused=is_paused)

    def report_playout(self, heard_s: float, now_s: float) -> None:
        """The client has heard so much of the response."""
        for segment in self._open:
            if segment.start_s is not None and heard_s >= segment.start_s:
                self._report(segment, heard_s - segment.start_s, now_s)

    def abort(self) -> None:
        """End every open stream now."""
        for segment in self._open:
            self._bridge.abort(segment.feed)
        self._open.clear()

    def _close(self, segment: SpokenSegment) -> None:
        # After an abort its listener may take one step more, before it is cancelled itself.
        if segment in self._open:
            self._open.remove(segment)
        self._has_ended.set()

    async def _speak_unit(self, unit: str, n_before: int) -> None:
        """Open a stream for a unit, or for its halves: acronyms sound longer than they look."""
        try:
            plan = await self._planner.plan(unit, seed=self._unit_seed, is_final=True)
        except ResponseFailedError as fault:
            is_parted = fault.code == PROMPT_TOO_LONG and not self._is_answer
            halves = split_unit(unit) if is_parted else ()
            if not halves:
                raise
            place = 0
            for half in halves:
                place = unit.index(half, place)
                await self._speak_unit(half, n_before + place)
                place += len(half)
            return
        if plan is not None:
            segment = await self._open_segment(plan, len(unit), n_before)
            segment.budget_s = self._planner.budget_s(unit)

    async def _stream_words(self) -> None:
        """Feed a model that takes text while it speaks: one stream up to each pause."""
        capacity = self._bridge.spec.text_capacity
        text = ""
        stream: WordStream | None = None
        while (unit := await self._line.next()) is not None:
            for piece in [unit] if isinstance(unit, Pause) else pieces_of(unit, capacity // 2):
                if stream is not None and not stream.has_room(piece, capacity):
                    await self._planner.extend(stream, "", is_final=True)
                    stream = None
                if isinstance(piece, Pause):
                    self._put_pause(piece)
                elif stream is not None:
                    await self._planner.extend(stream, piece, is_final=False)
                elif is_speakable(text := text + piece):
                    plan = await self._planner.plan(text, seed=self._unit_seed, is_final=False)
                    if plan is not None:
                        segment = await self._open_segment(plan, 0, 0)
                        stream = WordStream(segment, plan, text)
                    text = ""
        if stream is not None:
            await self._planner.extend(stream, "", is_final=True)

    @property
    def _unit_seed(self) -> int:
        return (self._seed + SEED_STEP * self._n_units) & MAX_SEED

    async def _open_segment(
        self, plan: PromptPlan, n_characters: int, n_before: int
    ) -> SpokenSegment:
        await self._wait_turn()
        now_s = self._clock()
        must_hurry = self._is_eager and self._ahead_s() < self._config.open_ahead_s
        is_paced = self._is_paced or must_hurry
        try:
            feed = self._bridge.open_stream(
                plan,
                seed=self._unit_seed,
                asked_s=now_s if self._n_units else self._asked_s,
                play_from_s=self._play_from_s(now_s, is_paced=is_paced),
                is_paced=is_paced,
            )
        except EngineStoppedError as error:
            raise ResponseFailedError("engine_stopped", str(error)) from None
        self._n_units += 1
        segment = SpokenSegment(
            feed=feed, n_characters=n_characters, n_before=n_before, is_paced=is_paced
        )
        self._open.append(segment)
        if self._is_paused:
            self._bridge.set_paused(feed, is_paused=True)
        self._segments.put_nowait(segment)
        return segment

    def _play_from_s(self, now_s: float, *, is_paced: bool) -> float | None:
        """When the next stream will be heard; None: it is waited for."""
        if not is_paced:
            # Nobody waits, but the engine must see that it is a part of what it has begun.
            return now_s if self._n_units else None
        ahead_s = self._ahead_s()
        return now_s + ahead_s if ahead_s > 0 else None

    def _put_pause(self, pause: Pause) -> None:
        self._pauses_s += pause.seconds
        self._segments.put_nowait(pause)

    async def _wait_turn(self) -> None:
        """Wait until the next stream is wanted: the last one is complete, or nearly heard.

        Where nobody listens, it is complete: the next takes the slot that it gives up, and none of
        those that the engine keeps for replies that play. (Two abreast are faster: a minute of
        pico took 0.10 of real time so and takes 0.14, two shared cores, 2026-11-29.)
        """
        while len(self._open) >= MAX_OPEN_STREAMS:
            self._has_ended.clear()
            await self._has_ended.wait()
        while self._open and self._open[-1].feed.outcome is None:
            wait_s = self._wait_s(self._open[-1])
            if wait_s <= 0:
                return
            await self._open[-1].feed.wait_end(max(wait_s, 0.05))

    def _wait_s(self, last: SpokenSegment) -> float:
        """Seconds until the next stream is wanted although the last one has not ended."""
        if self._is_paced:
            return self._ahead_s() - self._config.open_ahead_s
        if last.is_paced:
            # It is held to a listener's pace; there is no reason to hold what follows.
            return self._config.open_ahead_s - last.feed.received_s
        return self._config.engine_silence_s

    def _ahead_s(self) -> float:
        """Seconds until what was sent, made or promised so far will have been heard (a guess)."""
        ahead_s = self._playout.ahead_s(self._clock()) + self._pauses_s
        for segment in self._open:
            ahead_s += self._left_s(segment)
        return ahead_s

    def expected_s(self, segment: SpokenSegment) -> float:
        """Seconds that a segment will last (a guess until its stream has ended)."""
        expected_s = segment.feed.received_s
        if segment.feed.outcome is None:
            expected_s = max(expected_s, segment.n_characters * self._s_per_character)
        return expected_s

    def _left_s(self, segment: SpokenSegment) -> float:
        """Seconds of a segment that have not been sent."""
        sent_s = 0.0 if segment.start_s is None else self._playout.sent_s - segment.start_s
        return max(0.0, self.expected_s(segment) - sent_s)

    def _report(self, segment: SpokenSegment, heard_s: float, at_s: float) -> None:
        self._bridge.report_playout(segment.feed, heard_s, at_s)

"""The user's side of a conversation: what is heard becomes items and transcripts. Event loop only.

At each pause the transcript of the turn so far is begun on the chance that the turn is over, and
the judge is asked whether it sounds so; both together say how long the silence must be, and both
are dropped when the user goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from engine.types import Pcm
from realtime.agent.base import (
    HEARD_RATE_HZ,
    Agent,
    EndOfTurnJudge,
    StageFailed,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptEvent,
)
from realtime.conversation.answer import Asked
from realtime.conversation.endings import Ending, ending_of, finality, says_nothing
from realtime.conversation.endpointing import (
    SAMPLES_PER_MS,
    EndpointEvent,
    EndpointSettings,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    TurnEnded,
)
from realtime.conversation.events import (
    InputCleared,
    InputCommitted,
    InputTimeout,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptionUsage,
)
from realtime.conversation.input_audio import Piece
from realtime.conversation.item_wire import item_wire, new_item_id
from realtime.conversation.items import Conversation, Item, Part
from realtime.conversation.listener import Listener
from realtime.conversation.settings import ConversationSettings
from realtime.conversation.transcripts import SilentTranscription, Speculation, TurnTranscript
from realtime.errors import ProtocolError, printable
from realtime.events import ErrorDetail
from realtime.outlet import Outlet

logger = logging.getLogger(__name__)


class TurnWatcher(Protocol):
    """Who is told what the user does."""

    def on_speech_started(self) -> None:
        """The user begins to speak."""
        ...

    def on_turn_ended(self, turn: int, asked: Asked) -> None:
        """A turn is over and in the conversation."""
        ...

    def on_transcript(self, turn: int, *, is_empty: bool) -> None:
        """A turn's transcript is complete; empty: there is nothing to answer."""
        ...


class UserTurns:
    """What one session hears.

    Args:
        name: of the session.
        listener: its ears.
        judge: of ends of turns, or None.
        agent: who transcribes.
        settings: of the session.
        conversation: that turns go into.
        outlet: where events go.
        clock: monotonic seconds.
        watcher: told what the user does.
    """

    def __init__(
        self,
        *,
        name: str,
        listener: Listener,
        judge: EndOfTurnJudge | None,
        agent: Agent,
        settings: ConversationSettings,
        conversation: Conversation,
        outlet: Outlet,
        clock: Callable[[], float],
        watcher: TurnWatcher,
    ) -> None:
        self.agent = agent
        self.settings = settings
        self._name = name
        self._listener = listener
        self._judge = judge
        self._conversation = conversation
        self._outlet = outlet
        self._clock = clock
        self._watcher = watcher
        self._item_id = ""
        self._n_turns = 0
        self._speculation: Speculation | None = None
        self._judging: set[asyncio.Task[None]] = set()
        self._transcripts: dict[int, TurnTranscript] = {}
        self._settled = asyncio.Event()

    # What is heard.

    async def hear(self, pieces: Sequence[Piece], *, is_agent_speaking: Callable[[], bool]) -> None:
        """Take audio."""
        events, faults = await self._listener.hear(pieces, is_agent_speaking=is_agent_speaking)
        for fault in faults:
            self._outlet.error(fault)
        self._take(events)

    def configure(self, settings: EndpointSettings | None) -> None:
        """Change how turns are found; None: push to talk."""
        self._listener.configure(settings)
        if settings is None:
            self._drop_speculation()

    def check(self) -> None:
        """Time passes."""
        self._take(self._listener.check())

    async def commit(self) -> None:
        """The client says that the turn is over. Raises: `ProtocolError`."""
        pcm, has_voice = await self._listener.commit()
        self._drop_speculation()
        self._item_id = item_id = self._item_id or new_item_id()
        part = _heard_part(pcm)
        turn = self._put_turn(part)
        transcript = self._new_transcript(pcm) if has_voice else self._silence(pcm)
        self._listen_to(transcript, part, item_id, turn)

    def clear(self) -> None:
        """Forget what has been heard since the last turn."""
        self._listener.clear()
        self._drop_speculation()
        self._outlet.event(InputCleared())

    def take_silence(self) -> None:
        """The user has said nothing for a while: that silence is a turn."""
        start_ms = max(0, self._listener.end_ms - 1000)
        end_ms = self._listener.end_ms
        pcm = self._listener.cut(start_ms * SAMPLES_PER_MS, end_ms * SAMPLES_PER_MS)
        self._item_id = new_item_id()
        self._outlet.event(
            InputTimeout(audio_start_ms=start_ms, audio_end_ms=end_ms, item_id=self._item_id)
        )
        part = _heard_part(pcm)
        part.text = ""
        self._put_turn(part)

    def transcribe(self, item: Item, pcm: Pcm) -> None:
        """Add the transcript of audio that came inside an item."""
        part = next(part for part in item.parts if part.kind == "input_audio")
        part.audio, part.audio_s = pcm, len(pcm) / HEARD_RATE_HZ
        self._n_turns += 1
        self._listen_to(self._new_transcript(pcm), part, item.item_id, self._n_turns)

    @property
    def n_transcribing(self) -> int:
        """Turns and items of which the transcript is outstanding."""
        return len(self._transcripts)

    async def settled(self, patience_s: float) -> None:
        """Wait until no transcript is outstanding, at most so long."""
        try:
            async with asyncio.timeout(patience_s):
                while self._transcripts:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            logger.warning("%s: no transcript within %g s", self._name, patience_s)

    async def close(self) -> None:
        """End whatever runs."""
        self._drop_speculation()
        for task in list(self._judging):
            task.cancel()
        for transcript in list(self._transcripts.values()):
            await transcript.close()

    def _take(self, events: Sequence[EndpointEvent]) -> None:
        for event in events:
            match event:
                case SpeechStarted():
                    self._start(event)
                case SpeechPaused():
                    self._pause(event)
                case SpeechResumed():
                    self._drop_speculation()
                case TurnEnded():
                    self._end(event)
        # Also after the clock or a verdict ended a turn: what is in an item is not committed again.
        self._listener.let_go()

    def _start(self, event: SpeechStarted) -> None:
        self._item_id = new_item_id()
        # First the cause: clients that own their playout stop it at this, and look then which
        # answer was being made.
        self._outlet.event(
            SpeechStartedEvent(audio_start_ms=event.start // SAMPLES_PER_MS, item_id=self._item_id)
        )
        self._watcher.on_speech_started()

    def _pause(self, event: SpeechPaused) -> None:
        pcm = self._listener.cut(event.start, event.end)
        transcript = self._new_transcript(pcm)
        if transcript is not None:
            self._speculation = Speculation(pause_number=event.pause_number, transcript=transcript)
        if self._is_semantic:
            task = asyncio.create_task(self._weigh(event.pause_number, pcm, transcript))
            self._judging.add(task)
            task.add_done_callback(self._judging.discard)

    def _end(self, event: TurnEnded) -> None:
        pcm = self._listener.cut(event.start, event.end)
        now_s = self._clock()
        silence_s = (self._listener.position - event.speech_end) / HEARD_RATE_HZ
        asked = Asked(at_s=now_s, speech_end_s=now_s - silence_s)
        self._outlet.event(
            SpeechStoppedEvent(
                audio_end_ms=event.speech_end // SAMPLES_PER_MS, item_id=self._item_id
            )
        )
        begun, self._speculation = self._speculation, None
        if begun is not None and begun.pause_number == event.pause_number:
            transcript: TurnTranscript | None = begun.transcript
        else:
            if begun is not None:
                begun.transcript.cancel()
            transcript = self._new_transcript(pcm)
        part = _heard_part(pcm)
        item_id = self._item_id
        turn = self._put_turn(part)
        # First the turn, then its transcript, which may be there already.
        self._watcher.on_turn_ended(turn, asked)
        self._listen_to(transcript, part, item_id, turn)

    async def _weigh(self, pause_number: int, pcm: Pcm, transcript: TurnTranscript | None) -> None:
        """Find out whether the turn is over with this pause."""
        completeness = await self._completeness(pcm)
        ending: Ending = "open"
        if transcript is not None:
            # The words may take their time: what the judge says keeps the turn open meanwhile.
            self._take(self._listener.on_verdict(pause_number, finality(completeness, None)))
            text = await transcript.text()
            if text is not None:
                ending = ending_of(text, self._spoken_language)
        self._take(self._listener.on_verdict(pause_number, finality(completeness, ending)))

    async def _completeness(self, pcm: Pcm) -> float | None:
        if self._judge is None:
            return None
        try:
            return await self._judge.completeness(pcm)
        # Without the judge, words and silence decide.
        except Exception:
            logger.exception("%s: the end-of-turn judge failed", self._name)
            return None

    @property
    def _spoken_language(self) -> str | None:
        transcribing = self.settings.transcription
        return None if transcribing is None else transcribing.language

    @property
    def _is_semantic(self) -> bool:
        detection = self.settings.turn_detection
        return detection is not None and detection.type == "semantic_vad"

    # What becomes of it.

    def _put_turn(self, part: Part) -> int:
        self._n_turns += 1
        item = Item(item_id=self._item_id, parts=[part])
        self._item_id = ""
        before = self._conversation.last_id
        self._outlet.event(InputCommitted(item_id=item.item_id, previous_item_id=before))
        self.add_item(item, None)
        return self._n_turns

    def add_item(self, item: Item, previous_item_id: str | None) -> None:
        """Put a whole item into the conversation, and say so. Raises: `ProtocolError`."""
        if item.item_id == self._item_id:
            message = f"{printable(item.item_id)!r} is the id of the turn that is being heard"
            raise ProtocolError("item_id_taken", message, param="item.id")
        before, dropped = self._conversation.add(item, previous_item_id)
        wire = item_wire(item)
        self._outlet.event(ItemAdded(item=wire, previous_item_id=before))
        self._outlet.event(ItemDone(item=wire, previous_item_id=before))
        for item_id in dropped:
            self._outlet.event(ItemDeleted(item_id=item_id))

    def _new_transcript(self, pcm: Pcm) -> TurnTranscript | None:
        if not self.agent.can_transcribe:
            return None
        transcription = self.agent.transcribe(pcm, language=self._spoken_language)
        return TurnTranscript(transcription, self._name)

    def _silence(self, pcm: Pcm) -> TurnTranscript:
        return TurnTranscript(SilentTranscription(len(pcm) / HEARD_RATE_HZ), self._name)

    def _listen_to(
        self, transcript: TurnTranscript | None, part: Part, item_id: str, turn: int
    ) -> None:
        if transcript is None:
            return
        self._transcripts[turn] = transcript
        transcript.listen(partial(self._on_transcript, part, item_id, turn))

    def _on_transcript(self, part: Part, item_id: str, turn: int, event: TranscriptEvent) -> None:
        is_wanted = self.settings.transcription is not None
        match event:
            case TranscriptDelta(text=text):
                if is_wanted:
                    self._outlet.event(TranscriptionDelta(item_id=item_id, delta=text))
                return
            case TranscriptCompleted(text=text, seconds=seconds):
                part.text = text
                if not text.strip():
                    # Nobody spoke: there is nothing in it for an agent that hears, either.
                    part.audio = None
                usage = TranscriptionUsage(seconds=seconds)
                if is_wanted:
                    self._outlet.event(
                        TranscriptionCompleted(item_id=item_id, transcript=text, usage=usage)
                    )
            case StageFailed(code=code, message=message):
                fault = ErrorDetail(type="server_error", code=code, message=message)
                self._outlet.event(TranscriptionFailed(item_id=item_id, error=fault))
        del self._transcripts[turn]
        self._settled.set()
        self._watcher.on_transcript(turn, is_empty=says_nothing(part.text or ""))

    def _drop_speculation(self) -> None:
        if self._speculation is not None:
            self._speculation.transcript.cancel()
            self._speculation = None


def _heard_part(pcm: Pcm) -> Part:
    return Part(kind="input_audio", audio=pcm, audio_s=len(pcm) / HEARD_RATE_HZ)

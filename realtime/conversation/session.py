"""One conversation: what its socket brings, whose turn it is, the answers. Event loop only.

Everything that a client sends goes through one line, so that a commit follows the audio before it.
The turn machine decides, this performs: actions become answers, events and silence. Wire forms are
the lanes' business.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from starlette.websockets import WebSocket

from realtime.agent.base import Agent, ContextItem
from realtime.conversation.answer import Answer, Answers, Asked
from realtime.conversation.conversing import Conversing
from realtime.conversation.events import (
    ConversationCreated,
    ConversationUpdated,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
)
from realtime.conversation.incoming import Incoming
from realtime.conversation.input_audio import Piece, decode_whole
from realtime.conversation.item_wire import decoded_audio, item_of, item_wire
from realtime.conversation.items import Conversation
from realtime.conversation.listener import Listener
from realtime.conversation.protocol import (
    AnswerCreate,
    ConversationClientEvent,
    ConversationInfo,
    ConversationUpdate,
    InputAudioAppend,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
)
from realtime.conversation.settings import (
    ConversationSettings,
    conversation_info,
    default_turn_detection,
    endpoint_settings,
    merge_conversation,
    turn_settings,
)
from realtime.conversation.turns import (
    TRANSCRIPT_PATIENCE_S,
    Action,
    Cause,
    RefuseCancel,
    RefuseCreate,
    StartAnswer,
    StopAnswer,
    StopPlayout,
    TakeSilence,
    TurnMachine,
    TurnSettings,
)
from realtime.conversation.user_turns import UserTurns
from realtime.errors import ProtocolError, printable
from realtime.events import OutputAudioPlayout, ResponseCancel
from realtime.frames import AudioCodec
from realtime.gateway import Gateway
from realtime.settings import SpeechSettings
from realtime.socket_link import SocketHandler, SocketLink

TICK_S: Final = 0.05
PLAYOUT_GRACE_S: Final = 0.3
"""The client plays a little later than the estimate: its jitter buffer, its loudspeaker."""


class ConversationSession:
    """The core of a conversation, whatever its wire form.

    Args:
        socket: accepted.
        gateway: what sessions share.
        conversing: who answers and what hears.
        handler: the lane's: gives what comes to `put` and `put_audio`.
    """

    def __init__(
        self, socket: WebSocket, gateway: Gateway, conversing: Conversing, handler: SocketHandler
    ) -> None:
        self.session_id = f"sess_{secrets.token_hex(8)}"
        self.link = SocketLink(self.session_id, socket, gateway, handler)
        self._gateway = gateway
        self._clock = gateway.clock
        self._conversing = conversing
        self._outlet = self.link.outlet
        self._specs = conversing.specs
        self._settings = ConversationSettings(
            speech=SpeechSettings(model=next(iter(conversing.agents))),
            turn_detection=default_turn_detection(has_judge=conversing.judge is not None),
        )
        detection = self._settings.turn_detection
        self._conversation = Conversation()
        self._turns = TurnMachine(
            turn_settings(detection), needs_transcript=self._agent.needs_transcript
        )
        self._user = UserTurns(
            name=self.session_id,
            listener=Listener(
                conversing.detector, gateway.workers, self._clock, endpoint_settings(detection)
            ),
            judge=conversing.judge,
            agent=self._agent,
            settings=self._settings,
            conversation=self._conversation,
            outlet=self._outlet,
            clock=self._clock,
            watcher=self,
        )
        self._answers = Answers()
        self._asked = Asked(at_s=self._clock())
        self._incoming = Incoming()
        self._is_hearing = False

    @property
    def queue_s(self) -> float:
        """Seconds of audio that wait for the socket."""
        return self.link.queue.seconds

    @property
    def has_work(self) -> bool:
        """Whether an answer is being made."""
        return self._turns.active is not None

    @property
    def is_waiting(self) -> bool:
        """Whether nobody speaks and nothing is being made."""
        return self._turns.is_idle

    def request_stop(self) -> None:
        """End once no answer is being made, and begin none."""
        self._turns.settings = TurnSettings(creates=False)
        self.link.request_stop()

    def stop_now(self) -> None:
        """End at once."""
        self.link.stop_now()

    async def run(self) -> None:
        """Serve the socket until either side ends it. Leaves nothing behind in the engine."""
        self._gateway.enter(self)
        try:
            self._outlet.event(ConversationCreated(session=self._info()))
            await self.link.run([self._work_loop, self._tick_loop])
        finally:
            await self._answers.close()
            await self._user.close()
            self._gateway.leave(self)

    # The line of what comes in.

    def put(self, event: ConversationClientEvent) -> None:
        """Take an event, after all that came before. Raises: `ProtocolError`, `SessionEndError`."""
        if isinstance(event, InputAudioAppend):
            self.put_audio("pcm16", decoded_audio(event.audio, "audio"))
        else:
            self._incoming.put(event)

    def put_audio(self, codec: AudioCodec, payload: bytes) -> None:
        """Take audio. Raises: `ProtocolError`, `SessionEndError`."""
        rate_hz = self._settings.input_rate_hz
        self._incoming.put_audio(Piece(codec=codec, payload=payload, rate_hz=rate_hz))

    def on_paused(self, is_paused: bool) -> None:
        """Hold back the answer being made, or let it go on."""
        active = self._answers.get(self._turns.active)
        if active is not None:
            active.set_paused(is_paused)

    async def _work_loop(self) -> None:
        while True:
            first = await self._incoming.next()
            if isinstance(first, list):
                await self._hear(first)
                continue
            try:
                await self._perform(first)
            except ProtocolError as fault:
                fault.event_id = first.event_id
                self._outlet.error(fault)

    async def _hear(self, pieces: list[Piece]) -> None:
        self._is_hearing = True
        try:
            await self._user.hear(pieces, is_agent_speaking=lambda: self._turns.heard is not None)
        finally:
            self._is_hearing = False

    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Time has passed."""
        now_s = self._clock()
        # Audio that is being judged has come: only what has not come can be missed.
        if not self._is_hearing and self._incoming.is_empty:
            self._user.check()
        heard = self._answers.get(self._turns.heard)
        is_over = heard is not None and heard.is_done
        if heard is not None and is_over and heard.playout.ahead_s(now_s - PLAYOUT_GRACE_S) <= 0:
            self._do(self._turns.on_playout_ended(heard.number, now_s))
        self._do(self._turns.on_tick(now_s))

    # What the client wants.

    async def _perform(self, event: ConversationClientEvent) -> None:
        match event:
            case ConversationUpdate():
                self._update(event)
            case InputAudioCommit():
                await self._user.commit()
                self._do(self._turns.on_speech_dropped())
            case InputAudioClear():
                self._user.clear()
                self._do(self._turns.on_speech_dropped())
            case ItemCreate():
                await self._create_item(event)
            case ItemRetrieve(item_id=item_id):
                item = self._conversation.get(item_id, "item_retrieve_invalid_item_id")
                self._outlet.event(ItemRetrieved(item=item_wire(item)))
            case ItemTruncate():
                self._stop_making(event.item_id)
                self._cut(event.item_id, event.content_index, event.audio_end_ms / 1000)
            case ItemDelete(item_id=item_id):
                self._stop_making(item_id)
                self._conversation.delete(item_id)
                self._outlet.event(ItemDeleted(item_id=item_id))
            case AnswerCreate():
                self._create(event)
            case ResponseCancel(response_id=response_id):
                self._cancel(response_id)
            case OutputAudioPlayout(response_id=response_id, heard_ms=heard_ms):
                self._answers.by_id(response_id).report_playout(heard_ms / 1000)

    def _update(self, event: ConversationUpdate) -> None:
        settings = merge_conversation(self._settings, event.session, self._specs, prefix="session")
        if settings.speech.model != self._settings.speech.model and self.has_work:
            message = "the model cannot change while a response is being made"
            raise ProtocolError("response_active", message, param="session.model")
        detection = settings.turn_detection
        if detection != self._settings.turn_detection:
            self._user.configure(None if detection is None else endpoint_settings(detection))
            if detection is None:
                self._do(self._turns.on_speech_dropped())
        self._settings = self._user.settings = settings
        self._user.agent = self._agent
        if not self.link.is_stopping:
            self._turns.settings = turn_settings(detection)
        self._turns.needs_transcript = self._agent.needs_transcript
        self._outlet.event(ConversationUpdated(session=self._info()))

    async def _create_item(self, event: ItemCreate) -> None:
        item, payload = item_of(event.item, self._gateway.config.max_text_characters)
        self._user.add_item(item, event.previous_item_id)
        if payload is not None:
            piece = Piece(codec="pcm16", payload=payload, rate_hz=self._settings.input_rate_hz)
            pcm = await self._gateway.workers.run(decode_whole, piece)
            self._user.transcribe(item, pcm)

    def _create(self, event: AnswerCreate) -> None:
        if self.link.is_stopping:
            raise ProtocolError("server_stopping", "the server is stopping; connect again")
        settings = merge_conversation(
            self._settings, event.response, self._specs, prefix="response"
        )
        self._asked = Asked(at_s=self._clock())
        self._do(self._turns.on_create(), settings, event.response.metadata)

    def _cancel(self, response_id: str | None) -> None:
        active = self._answers.get(self._turns.active)
        if response_id is None or (active is not None and active.response_id == response_id):
            self._do(self._turns.on_cancel(None))
            return
        message = f"Cancellation failed: {printable(response_id)!r} is not active"
        raise ProtocolError("response_cancel_not_active", message, param="response_id")

    def _stop_making(self, item_id: str) -> None:
        """An item that is still being made is complete as it is."""
        active = self._answers.get(self._turns.active)
        if active is not None and active.message_id == item_id:
            self._do(self._turns.on_cancel(active.number))

    # What the user does.

    def on_speech_started(self) -> None:
        """The user begins to speak."""
        self._do(self._turns.on_speech_started(self._clock()))

    def on_turn_ended(self, turn: int, asked: Asked) -> None:
        """A turn is over and in the conversation."""
        self._asked = asked
        self._do(self._turns.on_turn_ended(turn, self._clock()))

    def on_transcript(self, turn: int, *, is_empty: bool) -> None:
        """A turn's transcript is complete."""
        self._asked.transcript_s = self._clock()
        self._do(self._turns.on_transcript(turn, is_empty=is_empty))

    # What follows.

    def _do(
        self,
        actions: Sequence[Action],
        settings: ConversationSettings | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        for action in actions:
            match action:
                case StopPlayout(number=number):
                    self._silence(self._known(number))
                case StopAnswer(number=number, reason=reason):
                    self._known(number).stop(reason)
                case StartAnswer(number=number, cause=cause):
                    self._start(number, cause, settings or self._settings, metadata)
                case TakeSilence():
                    self._user.take_silence()
                    self._asked = Asked(at_s=self._clock())
                case RefuseCreate(active_number=number):
                    active = self._known(number).response_id
                    message = f"Conversation already has an active response in progress: {active}."
                    raise ProtocolError("conversation_already_has_active_response", message)
                case RefuseCancel():
                    message = "Cancellation failed: no active response found"
                    raise ProtocolError("response_cancel_not_active", message)

    def _known(self, number: int) -> Answer:
        answer = self._answers.get(number)
        assert answer is not None, "what is being made or heard is among the last answers"
        return answer

    def _silence(self, answer: Answer) -> None:
        """Stop the client's playout, and let only what was heard count."""
        answer.drop_unsent()
        self._outlet.event(OutputCleared(response_id=answer.response_id))
        if answer.message_id is not None and self._conversation.has(answer.message_id):
            self._cut(answer.message_id, 0, answer.playout.heard_s(self._clock()))

    def _cut(self, item_id: str, content_index: int, audio_s: float) -> None:
        kept_ms = round(1000 * self._conversation.truncate(item_id, content_index, audio_s))
        self._outlet.event(
            ItemTruncated(item_id=item_id, content_index=content_index, audio_end_ms=kept_ms)
        )

    def _start(
        self,
        number: int,
        cause: Cause,
        settings: ConversationSettings,
        metadata: dict[str, str] | None,
    ) -> None:
        answer = Answer(
            session_id=self.session_id,
            number=number,
            agent=self._agent,
            settings=settings,
            metadata=metadata,
            asked=self._asked,
            conversation=self._conversation,
            gateway=self._gateway,
            outlet=self._outlet,
            on_playing=lambda: self._do(self._turns.on_playout_started(number)),
            on_ended=lambda: self._on_answer_ended(number),
        )
        self._answers.add(answer)
        answer.announce()
        answer.set_paused(self.link.queue.is_paused)
        answer.start(lambda: self._context(cause))

    def _on_answer_ended(self, number: int) -> None:
        self.link.touch()
        self._do(self._turns.on_answer_ended(number, self._clock()))

    async def _context(self, cause: Cause) -> tuple[ContextItem, ...] | None:
        """The conversation as it is to be answered; None where the user said nothing."""
        if self._agent.needs_transcript:
            await self._user.settled(TRANSCRIPT_PATIENCE_S)
        is_silent = self._conversation.is_last_silent and cause != "idle"
        return None if is_silent else self._conversation.context()

    @property
    def _agent(self) -> Agent:
        return self._conversing.agents[self._settings.speech.model]

    def _info(self) -> ConversationInfo:
        spec = self._specs[self._settings.speech.model]
        return conversation_info(self.session_id, self._settings, spec, self._gateway.config)

"""One conversation: what its socket brings, whose turn it is, the answers. Event loop only.

Everything that a client sends goes through one line, so that a commit follows the audio before it.
The turn machine decides, this performs: actions become answers, events and silence. Wire forms are
the lanes' business.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Final

from starlette.websockets import WebSocket

from realtime.conversation.answer import Asked, Context, Order
from realtime.conversation.answering import Answering, Items
from realtime.conversation.conversing import Conversing
from realtime.conversation.events import (
    ConversationCreated,
    ConversationUpdated,
    ItemDeleted,
    ItemRetrieved,
)
from realtime.conversation.given_items import given_items
from realtime.conversation.in_force import SettingsInForce
from realtime.conversation.incoming import Incoming
from realtime.conversation.input_audio import Piece, decode_whole
from realtime.conversation.item_wire import decoded_audio, item_of, item_wire
from realtime.conversation.items import Conversation
from realtime.conversation.listener import Listener
from realtime.conversation.manners import Manners
from realtime.conversation.protocol import (
    AnswerCreate,
    ConversationClientEvent,
    ConversationUpdate,
    InputAudioAppend,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
)
from realtime.conversation.settings import endpoint_settings, turn_settings
from realtime.conversation.turns import (
    TRANSCRIPT_PATIENCE_S,
    Action,
    Cause,
    RefuseCancel,
    RefuseCreate,
    ResumeAnswer,
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
from realtime.socket_link import MessageReader, SocketLink

TICK_S: Final = 0.05
MAX_TRANSCRIBING: Final = 8
"""Items of the client whose audio may wait for its transcript."""
PLAYOUT_GRACE_S: Final = 0.3
"""The client plays a little later than the estimate: its jitter buffer, its loudspeaker."""


class ConversationSession:
    """The core of a conversation, whatever its wire form.

    Args:
        socket: accepted.
        gateway: what sessions share.
        conversing: who answers and what hears.
        reader: the lane's: gives what comes to `put` and `put_audio`.
        manners: of the lane.
    """

    def __init__(
        self,
        socket: WebSocket,
        gateway: Gateway,
        conversing: Conversing,
        reader: MessageReader,
        manners: Manners,
    ) -> None:
        self.session_id = f"sess_{secrets.token_hex(8)}"
        self.link = SocketLink(
            self.session_id,
            socket,
            gateway,
            reader,
            self,
            manners.form,
            may_be_silent=manners.may_be_silent,
            lasts_s=gateway.config.max_session_s,
            max_message_bytes=gateway.config.max_audio_message_bytes,
        )
        self._gateway = gateway
        self._clock = gateway.clock
        self._outlet = self.link.outlet
        self._settings = SettingsInForce(self.session_id, gateway, conversing, manners.opening)
        detection = self._settings.now.turn_detection
        agent = self._settings.agent
        self._conversation = Conversation()
        self._turns = TurnMachine(turn_settings(detection), needs_transcript=agent.needs_transcript)
        self._user = UserTurns(
            name=self.session_id,
            listener=Listener(
                conversing.detector, gateway.workers, self._clock, endpoint_settings(detection)
            ),
            judge=conversing.judge,
            agent=agent,
            settings=self._settings.now,
            conversation=self._conversation,
            outlet=self._outlet,
            clock=self._clock,
            watcher=self,
        )
        self._answering = Answering(
            session_id=self.session_id,
            gateway=gateway,
            outlet=self._outlet,
            conversation=self._conversation,
            is_client_truncating=manners.is_client_truncating,
        )
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
        return self._turns.active is not None or self._answering.n_aside > 0

    @property
    def is_waiting(self) -> bool:
        """Whether nobody speaks and nothing is being made."""
        return self._turns.is_idle and not self._answering.n_aside

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
            self._outlet.event(ConversationCreated(session=self._settings.info()))
            await self.link.run([self._work_loop, self._tick_loop], self._answering.cut_off)
        finally:
            await self._answering.close()
            await self._user.close()
            self._gateway.leave(self)

    # The line of what comes in.

    def put(self, event: ConversationClientEvent, n_bytes: int) -> None:
        """Take an event of so many bytes, after all that came before.

        Raises: `ProtocolError`, `SessionEndError`.
        """
        if isinstance(event, InputAudioAppend):
            self.put_audio(None, decoded_audio(event.audio, "audio"))
        else:
            self._incoming.put(event, n_bytes)

    def put_audio(self, codec: AudioCodec | None, payload: bytes) -> None:
        """Take audio; None: in the session's form. Raises: `ProtocolError`, `SessionEndError`."""
        self._incoming.put_audio(Piece(codec=codec, payload=payload))

    def on_paused(self, is_paused: bool) -> None:
        """Hold back the answer being made, or let it go on."""
        self._answering.set_paused(is_paused, self._turns.active)

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
        pieces = [self._settings.now.formed(piece) for piece in pieces]
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
        heard = self._answering.get(self._turns.heard)
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
                self._do(self._turns.on_committed())
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
                heard_s = event.audio_end_ms / 1000
                self._answering.cut(event.item_id, event.content_index, heard_s)
            case ItemDelete(item_id=item_id):
                self._stop_making(item_id)
                self._conversation.delete(item_id)
                self._outlet.event(ItemDeleted(item_id=item_id))
            case AnswerCreate():
                self._create(event)
            case ResponseCancel(response_id=response_id):
                self._cancel(response_id)
            case OutputAudioPlayout(response_id=response_id, heard_ms=heard_ms):
                self._answering.by_id(response_id).report_playout(heard_ms / 1000)

    def _update(self, event: ConversationUpdate) -> None:
        settings, before = self._settings.updated(event), self._settings.now
        if settings.speech.model != before.speech.model and self.has_work:
            message = "the model cannot change while a response is being made"
            raise ProtocolError("response_active", message, param="session.model")
        detection = settings.turn_detection
        if detection != before.turn_detection:
            self._user.configure(None if detection is None else endpoint_settings(detection))
            if detection is None:
                self._do(self._turns.on_speech_dropped())
        self._settings.now = self._user.settings = settings
        self._user.agent = agent = self._settings.agent
        if not self.link.is_stopping:
            self._turns.settings = turn_settings(detection)
        self._turns.needs_transcript = agent.needs_transcript
        self._outlet.event(ConversationUpdated(session=self._settings.info()))

    async def _create_item(self, event: ItemCreate) -> None:
        item, payload = item_of(event.item, self._gateway.config.max_text_characters)
        if payload is not None and self._user.n_transcribing >= MAX_TRANSCRIBING:
            message = f"{MAX_TRANSCRIBING} items are being transcribed already"
            raise ProtocolError("too_many_events", message, param="item.content")
        self._user.add_item(item, event.previous_item_id)
        if payload is not None:
            piece = self._settings.now.formed(Piece(codec=None, payload=payload))
            pcm = await self._gateway.workers.run(decode_whole, piece)
            self._user.transcribe(item, pcm)

    def _create(self, event: AnswerCreate) -> None:
        if self.link.is_stopping:
            raise ProtocolError("server_stopping", "the server is stopping; connect again")
        settings, wanted = self._settings.of_answer(event), event.response
        agent = self._settings.agent
        items: Items = partial(self._context, "client")
        if wanted.input is not None:
            most = self._gateway.config.max_text_characters
            given = given_items(wanted.input, self._conversation, settings, most)
            items = partial(given.context, agent, settings, self._gateway.workers)
        asked = Asked(at_s=self._clock())
        order = Order(agent=agent, settings=settings, asked=asked, metadata=wanted.metadata)
        if wanted.conversation == "none":
            number = self._turns.take_number()
            self._answering.begin_aside(number, order, items, on_ended=self.link.touch)
        else:
            self._do(self._turns.on_create(), order, items)

    def _cancel(self, response_id: str | None) -> None:
        aside = None if response_id is None else self._answering.aside(response_id)
        if aside is not None:
            aside.stop("client_cancelled")
            return
        active = self._answering.get(self._turns.active)
        if response_id is None or (active is not None and active.response_id == response_id):
            self._do(self._turns.on_cancel(None))
            return
        message = f"Cancellation failed: {printable(response_id)!r} is not active"
        raise ProtocolError("response_cancel_not_active", message, param="response_id")

    def _stop_making(self, item_id: str) -> None:
        """An item that is still being made is complete as it is."""
        active = self._answering.get(self._turns.active)
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
        order: Order | None = None,
        items: Items | None = None,
    ) -> None:
        for action in actions:
            match action:
                case StopPlayout(number=number):
                    self._answering.silence(number, self._clock())
                case StopAnswer(number=number, reason=reason):
                    self._answering.known(number).stop(reason)
                case StartAnswer(number=number, cause=cause):
                    self._start(number, order, items or partial(self._context, cause))
                case ResumeAnswer(number=number, of=of):
                    self._resume(number, of)
                case TakeSilence():
                    self._user.take_silence()
                    self._asked = Asked(at_s=self._clock())
                case RefuseCreate(active_number=number):
                    active = self._answering.known(number).response_id
                    message = f"Conversation already has an active response in progress: {active}."
                    raise ProtocolError("conversation_already_has_active_response", message)
                case RefuseCancel():
                    message = "Cancellation failed: no active response found"
                    raise ProtocolError("response_cancel_not_active", message)

    def _start(self, number: int, order: Order | None, items: Items) -> None:
        now = self._settings
        order = order or Order(agent=now.agent, settings=now.now, asked=self._asked)
        self._answering.begin(
            number,
            order,
            items,
            on_playing=lambda: self._do(self._turns.on_playout_started(number)),
            on_ended=lambda: self._on_answer_ended(number),
        )

    def _resume(self, number: int, of: int) -> None:
        """Go on with an answer that was broken off by nothing that was said."""
        order = self._answering.rest_of(of)
        if order is None:
            self._do(self._turns.on_answer_ended(number, self._clock()))
        else:
            self._start(number, order, partial(self._context, "resume"))

    def _on_answer_ended(self, number: int) -> None:
        self.link.touch()
        self._do(self._turns.on_answer_ended(number, self._clock()))

    async def _context(self, cause: Cause) -> Context | None:
        """The conversation as it is to be answered; None where the user said nothing."""
        if self._settings.agent.needs_transcript:
            await self._user.settled(TRANSCRIPT_PATIENCE_S)
        is_silent = self._conversation.is_last_silent and cause not in ("idle", "resume")
        return None if is_silent else self._conversation.context()

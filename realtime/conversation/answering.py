"""The answers of one session: begun, in the conversation or aside of it, and found again.

One answer at a time goes into the conversation: whose turn it is, `realtime.conversation.turns`
decides. Answers aside (`conversation: none`) change nothing and wait for nobody. Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from realtime.conversation.answer import Answer, Context, Order
from realtime.conversation.events import ItemTruncated, OutputCleared
from realtime.conversation.items import Conversation
from realtime.errors import ProtocolError, printable
from realtime.gateway import Gateway
from realtime.outlet import Outlet

N_KNOWN: Final = 8
MAX_ASIDE: Final = 4
"""Answers aside that may be made at once by one session."""

Items = Callable[[], Awaitable[Context | None]]


class Answering:
    """The last few answers of a session, by number.

    Args:
        session_id: of the session.
        gateway: what sessions share.
        outlet: where events and audio go.
        conversation: that answers go into.
        is_client_truncating: see `realtime.conversation.manners`.
    """

    def __init__(
        self,
        *,
        session_id: str,
        gateway: Gateway,
        outlet: Outlet,
        conversation: Conversation,
        is_client_truncating: bool,
    ) -> None:
        self._session_id = session_id
        self._gateway = gateway
        self._outlet = outlet
        self._conversation = conversation
        self._is_client_truncating = is_client_truncating
        self._answers: dict[int, Answer] = {}
        self._aside: dict[int, Answer] = {}

    @property
    def n_aside(self) -> int:
        """Answers aside that are being made."""
        return len(self._aside)

    def begin(
        self,
        number: int,
        order: Order,
        items: Items,
        *,
        on_playing: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        """Answer the conversation. `items`: see `Answer.start`."""
        answer = self._make(number, order, self._conversation, on_playing, on_ended)
        self._answers[number] = answer
        while len(self._answers) > N_KNOWN:
            del self._answers[min(self._answers)]
        self._start(answer, items)

    def begin_aside(
        self, number: int, order: Order, items: Items, *, on_ended: Callable[[], None]
    ) -> None:
        """Answer aside of the conversation.

        Raises:
            ProtocolError: too many are being made.
        """
        if len(self._aside) >= MAX_ASIDE:
            message = f"{MAX_ASIDE} responses out of the conversation are being made already"
            raise ProtocolError("too_many_responses", message, param="response.conversation")

        def end() -> None:
            del self._aside[number]
            on_ended()

        answer = self._aside[number] = self._make(number, order, None, _nothing, end)
        self._start(answer, items)

    def get(self, number: int | None) -> Answer | None:
        """The answer in the conversation with this number, if it is known."""
        return None if number is None else self._answers.get(number)

    def known(self, number: int) -> Answer:
        """The answer with this number, which is being made or heard."""
        answer = self._answers.get(number)
        assert answer is not None, "what is being made or heard is among the last answers"
        return answer

    def silence(self, number: int, now_s: float) -> None:
        """Stop the client's playout of an answer, and let only what was heard count."""
        answer = self.known(number)
        answer.drop_unsent()
        self._outlet.event(OutputCleared(response_id=answer.response_id))
        if answer.message_id is None or not self._conversation.has(answer.message_id):
            return
        heard_s = answer.playout.heard_s(now_s)
        if self._is_client_truncating:
            self._conversation.note_heard(answer.message_id, heard_s)
        else:
            self.cut(answer.message_id, 0, heard_s)

    def cut(self, item_id: str, content_index: int, audio_s: float) -> None:
        """Cut an answer's item to its first seconds. Raises: `ProtocolError`."""
        kept_ms = round(1000 * self._conversation.truncate(item_id, content_index, audio_s))
        self._outlet.event(
            ItemTruncated(item_id=item_id, content_index=content_index, audio_end_ms=kept_ms)
        )

    def rest_of(self, number: int) -> Order | None:
        """An order for what was not heard of an answer; None: there is nothing that can be said."""
        answer = self.get(number)
        return None if answer is None else answer.rest()

    def aside(self, response_id: str) -> Answer | None:
        """The answer aside that clients call so, if it is being made."""
        return next((one for one in self._aside.values() if one.response_id == response_id), None)

    def by_id(self, response_id: str) -> Answer:
        """The answer that clients call so. Raises: `ProtocolError`."""
        for answer in (*self._answers.values(), *self._aside.values()):
            if answer.response_id == response_id:
                return answer
        message = f"unknown response {printable(response_id)!r}"
        raise ProtocolError("unknown_response", message, param="response_id")

    def set_paused(self, is_paused: bool, active: int | None) -> None:
        """Hold back what is being made, or let it go on."""
        making = [*self._aside.values(), self.get(active)]
        for answer in making:
            if answer is not None:
                answer.set_paused(is_paused)

    def cut_off(self) -> None:
        """Say of every answer being made that it ends here: the socket is about to close."""
        for answer in [*self._answers.values(), *self._aside.values()]:
            answer.stop("session_ended")

    async def close(self) -> None:
        """End whatever runs, and wait for it."""
        for answer in (*self._answers.values(), *self._aside.values()):
            await answer.close()

    def _make(
        self,
        number: int,
        order: Order,
        conversation: Conversation | None,
        on_playing: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> Answer:
        return Answer(
            session_id=self._session_id,
            number=number,
            order=order,
            conversation=conversation,
            is_client_truncating=self._is_client_truncating,
            gateway=self._gateway,
            outlet=self._outlet,
            on_playing=on_playing,
            on_ended=on_ended,
        )

    def _start(self, answer: Answer, items: Items) -> None:
        answer.announce()
        answer.set_paused(self._outlet.queue.is_paused)
        answer.start(items)


def _nothing() -> None:
    pass

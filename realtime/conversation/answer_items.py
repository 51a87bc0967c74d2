"""The items that one response makes, as they grow, and the events that tell of them.

Event loop only. A response without tools makes one message with one part; it exists from its first
word or sound on.
"""

from __future__ import annotations

from typing import TypedDict

from realtime.agent.base import ContextItem, FunctionCall
from realtime.conversation.events import (
    ArgumentsDelta,
    ArgumentsDone,
    AudioMark,
    ContentPartAdded,
    ContentPartDone,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    TextDeltaEvent,
    TextDoneEvent,
    TranscriptDeltaEvent,
    TranscriptDoneEvent,
)
from realtime.conversation.item_wire import item_wire, new_item_id
from realtime.conversation.items import Conversation, Item, Part, heard_text, text_that_counts
from realtime.conversation.protocol import ItemWire, PartWire
from realtime.outlet import Outlet


class _Place(TypedDict):
    response_id: str
    output_index: int
    item_id: str


class AnswerItems:
    """Items of one response.

    Args:
        response_id: of the response.
        outlet: where events go.
        conversation: that the items go into; None: they go into none.
        wants_audio: the message is spoken.
    """

    def __init__(
        self,
        *,
        response_id: str,
        outlet: Outlet,
        conversation: Conversation | None,
        wants_audio: bool,
    ) -> None:
        self._response_id = response_id
        self._outlet = outlet
        self._conversation = conversation
        self._wants_audio = wants_audio
        self._items: list[Item] = []
        self._before: dict[str, str | None] = {}
        self._message: Item | None = None
        self._message_idx = 0
        self._written = ""
        self._n_changes: int | None = None

    @property
    def message_id(self) -> str | None:
        """Id of the message; None before its first word."""
        return None if self._message is None else self._message.item_id

    def output(self) -> list[ItemWire]:
        """All items, as clients see them."""
        return [item_wire(item) for item in self._items]

    def unheard_text(self) -> str:
        """What was written and, as the message has been cut, not heard."""
        heard = None if self._message is None else text_that_counts(self._message.parts[0])
        return self._written[len(heard or "") :].strip()

    def note_context(self, context: tuple[ContextItem, ...]) -> None:
        """This is told to the agent now, to be answered."""
        if self._conversation is not None and self._conversation.is_told(context):
            self._n_changes = self._conversation.n_changes

    def open_message(self) -> Part:
        """The part that grows; made on the first call."""
        if self._message is None:
            part = Part(kind="output_audio" if self._wants_audio else "output_text", text="")
            self._message = Item(
                item_id=new_item_id(), role="assistant", parts=[part], status="in_progress"
            )
            self._message_idx = len(self._items)
            self._add(self._message)
            self._outlet.event(
                ContentPartAdded(**self._place(), part=self._part_wire(part, is_whole=False))
            )
        return self._message.parts[0]

    def add_text(self, text: str) -> None:
        """More of what is said."""
        part = self.open_message()
        part.text = (part.text or "") + text
        self._written += text
        kind = TranscriptDeltaEvent if self._wants_audio else TextDeltaEvent
        self._outlet.event(kind(**self._place(), delta=text))

    def mark(self, audio_s: float, text_end: int) -> None:
        """So many characters have been spoken at `audio_s` seconds."""
        part = self.open_message()
        last = part.marks[-1][1] if part.marks else 0
        part.marks.append((audio_s, max(last, text_end)))
        part.audio_s = audio_s
        self._outlet.event(
            AudioMark(
                **self._place(), audio_ms=round(audio_s * 1000, 3), n_characters=part.marks[-1][1]
            )
        )

    def add_call(self, call: FunctionCall) -> None:
        """A function is to be called."""
        item = Item(
            item_id=new_item_id(),
            kind="function_call",
            role="assistant",
            status="in_progress",
            call_id=call.call_id,
            name=call.name,
        )
        self._add(item)
        place: _Place = {
            "response_id": self._response_id,
            "output_index": len(self._items) - 1,
            "item_id": item.item_id,
        }
        self._outlet.event(ArgumentsDelta(**place, call_id=call.call_id, delta=call.arguments))
        item.arguments, item.status = call.arguments, "completed"
        self._outlet.event(
            ArgumentsDone(**place, call_id=call.call_id, name=call.name, arguments=call.arguments)
        )
        self._finish(item, len(self._items) - 1)

    def close(
        self,
        *,
        is_complete: bool,
        kept_s: float | None,
        heard_s: float | None = None,
        memory: object | None = None,
    ) -> None:
        """The response is over.

        Args:
            is_complete: nothing was cut.
            kept_s: what of its audio counts, where the response was stopped.
            heard_s: what of that the client seems to have heard, where it will say so itself.
            memory: of the agent, where nothing was cut.
        """
        item = self._message
        if item is None:
            return
        part = item.parts[0]
        item.memory = memory if is_complete and self._is_as_told() else None
        item.status = "completed" if is_complete else "incomplete"
        if self._wants_audio and not is_complete:
            if kept_s is not None:
                part.audio_s = min(part.audio_s, kept_s)
            part.text = heard_text(part.text or "", part.marks, part.audio_s)
            part.heard_s = heard_s
        text = part.text or ""
        if self._wants_audio:
            self._outlet.event(TranscriptDoneEvent(**self._place(), transcript=text))
        else:
            self._outlet.event(TextDoneEvent(**self._place(), text=text))
        self._outlet.event(
            ContentPartDone(**self._place(), part=self._part_wire(part, is_whole=True))
        )
        self._finish(item, self._message_idx)

    def _is_as_told(self) -> bool:
        """Whether the whole conversation was told, and has not changed since but at its end."""
        return self._conversation is not None and self._conversation.n_changes == self._n_changes

    def _add(self, item: Item) -> None:
        self._items.append(item)
        outlet = self._outlet
        wire = item_wire(item)
        outlet.event(
            OutputItemAdded(
                response_id=self._response_id,
                output_index=len(self._items) - 1,
                item=wire,
            )
        )
        if self._conversation is not None:
            before, dropped = self._conversation.add(item)
            self._before[item.item_id] = before
            outlet.event(ItemAdded(item=wire, previous_item_id=before))
            for item_id in dropped:
                outlet.event(ItemDeleted(item_id=item_id))

    def _finish(self, item: Item, output_index: int) -> None:
        outlet = self._outlet
        wire = item_wire(item)
        outlet.event(
            OutputItemDone(
                response_id=self._response_id,
                output_index=output_index,
                item=wire,
            )
        )
        if self._conversation is not None:
            before = self._before[item.item_id]
            outlet.event(ItemDone(item=wire, previous_item_id=before))

    def _place(self) -> _Place:
        assert self._message is not None, "the message is open"
        return {
            "response_id": self._response_id,
            "output_index": self._message_idx,
            "item_id": self._message.item_id,
        }

    def _part_wire(self, part: Part, *, is_whole: bool) -> PartWire:
        """A part in the events about parts, where it is called `audio` or `text`."""
        text = (part.text or "") if is_whole else ""
        if self._wants_audio:
            return PartWire(type="audio", transcript=text)
        return PartWire(type="text", text=text)

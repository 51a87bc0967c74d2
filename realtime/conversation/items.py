"""The items of one conversation, in order, and what an agent may know of them. Sans-I/O.

An answer counts as far as it was heard: where playout was stopped, its text is cut to the words
that had sounded by then, and the rest is not in the context of later answers.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from engine.types import Pcm
from realtime.agent.base import (
    HEARD_RATE_HZ,
    CallResult,
    ContextItem,
    Message,
    PastCall,
    Role,
)
from realtime.errors import ProtocolError, printable

ROOT: Final = "root"
MAX_ITEMS: Final = 500
MAX_AUDIO_S: Final = 60.0
"""Of user audio kept in a conversation; older turns keep their transcript only."""

ItemKind = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
PartKind = Literal["input_text", "input_audio", "output_text", "output_audio"]


@dataclass(slots=True, kw_only=True)
class Part:
    """One content part of a message.

    Args:
        kind: what it holds.
        text: text or transcript; None where speech has none (yet).
        audio: of the user, float32 mono at 16 kHz, while it is kept.
        audio_s: seconds of audio, of user or agent.
        marks: of an answer: (seconds, characters spoken by then), both never falling.
        heard_s: of an answer that was stopped: how much of it seems to have been heard, until the
            client says so itself; None: all of it counts.
    """

    kind: PartKind
    text: str | None = None
    audio: Pcm | None = None
    audio_s: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list)
    heard_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Item:
    """One item. Calls have `call_id`, `name`, `arguments`; their results `call_id`, `output`.

    `memory` is what the agent that answered wants to be given back; it knows the conversation up to
    here, and is forgotten where that changes.
    """

    item_id: str
    kind: ItemKind = "message"
    role: Role = "user"
    parts: list[Part] = field(default_factory=list)
    status: ItemStatus = "completed"
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str = ""
    memory: object | None = None


class Conversation:
    """Items by id, in order."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._n_changes = 0
        self._told: tuple[ContextItem, ...] | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """All of them, oldest first."""
        return tuple(self._items)

    @property
    def n_changes(self) -> int:
        """How often something other than its end has changed: what is gone, cut, or put between.

        What an agent took in before that, it knows otherwise than it is now.
        """
        return self._n_changes

    def is_told(self, context: tuple[ContextItem, ...]) -> bool:
        """Whether this is what was last told of it, and of nothing else."""
        return context is self._told

    @property
    def last_id(self) -> str | None:
        """Id of the newest item."""
        return self._items[-1].item_id if self._items else None

    @property
    def is_last_silent(self) -> bool:
        """See `is_last_silent`."""
        return is_last_silent(self._items)

    def add(self, item: Item, previous_item_id: str | None = None) -> tuple[str | None, list[str]]:
        """Put an item in, at the end or behind another one.

        Args:
            item: with an id of its own.
            previous_item_id: None: at the end; `root`: first of all.

        Returns:
            The id of the item before it (None: it is the first), and the ids of old items that had
            to go because the conversation is full.

        Raises:
            ProtocolError: the id is taken, or the one before is unknown.
        """
        if item.item_id == ROOT or self.has(item.item_id):
            message = f"there is an item {printable(item.item_id)!r} already"
            raise ProtocolError("item_id_taken", message, param="item.id")
        at = self._place(previous_item_id)
        self._forget_memory(at)
        self._items.insert(at, item)
        before = self._items[at - 1].item_id if at else None
        dropped = []
        while len(self._items) > MAX_ITEMS:
            oldest = self._items[0] if self._items[0] is not item else self._items[1]
            self._items.remove(oldest)
            dropped.append(oldest.item_id)
        self._forget_old_audio()
        return before, dropped

    def has(self, item_id: str) -> bool:
        """Whether there is an item with this id."""
        return any(item.item_id == item_id for item in self._items)

    def get(self, item_id: str, code: str = "item_not_found") -> Item:
        """The item with this id. Raises: `ProtocolError` with `code`, param `item_id`."""
        for item in self._items:
            if item.item_id == item_id:
                return item
        message = f"there is no item {printable(item_id)!r} in the conversation"
        raise ProtocolError(code, message, param="item_id")

    def delete(self, item_id: str) -> None:
        """Take an item out. Raises: `ProtocolError`."""
        item = self.get(item_id, "item_delete_invalid_item_id")
        self._forget_memory(self._items.index(item))
        self._items.remove(item)

    def truncate(self, item_id: str, content_index: int, audio_s: float) -> float:
        """Cut an answer to its first seconds, and its text to what was said in them.

        Returns:
            The seconds kept: at most as much as there is.

        Raises:
            ProtocolError: no such item or part, or not one of the agent's.
        """
        item = self.get(item_id, "item_truncate_invalid_item_id")
        if item.kind != "message" or item.role != "assistant":
            message = f"item {printable(item_id)!r} is not an answer; only answers can be truncated"
            raise ProtocolError("item_truncate_invalid_item_id", message, param="item_id")
        if content_index and content_index >= len(item.parts):
            message = f"the item has {len(item.parts)} content parts, no index {content_index}"
            raise ProtocolError("invalid_value", message, param="content_index")
        if not item.parts:
            # Before its first sound: nothing that comes later is kept either.
            item.status = "incomplete"
            return 0.0
        part = item.parts[content_index]
        part.heard_s = None
        if part.kind != "output_audio":
            return 0.0
        if audio_s < part.audio_s or not audio_s:
            part.text = heard_text(part.text or "", part.marks, audio_s)
            part.marks = [mark for mark in part.marks if mark[0] <= audio_s]
            part.audio_s = audio_s
            item.status = "incomplete"
            self._forget_memory(self._items.index(item))
        return part.audio_s

    def note_heard(self, item_id: str, heard_s: float) -> None:
        """An answer was stopped: about so much of it counts, until the client truncates it."""
        for part in self.get(item_id).parts:
            part.heard_s = min(part.audio_s, heard_s)

    def context(self) -> tuple[ContextItem, ...]:
        """What an agent may know of it."""
        self._told = context_of(self._items)
        return self._told

    def _place(self, previous_item_id: str | None) -> int:
        if previous_item_id is None:
            return len(self._items)
        if previous_item_id == ROOT:
            return 0
        for place, item in enumerate(self._items):
            if item.item_id == previous_item_id:
                return place + 1
        message = f"there is no item {printable(previous_item_id)!r} to go behind"
        raise ProtocolError("item_not_found", message, param="previous_item_id")

    def _forget_memory(self, at: int) -> None:
        """What answers from the item at this place on know is not so any more."""
        self._n_changes += at < len(self._items)
        for item in self._items[at:]:
            item.memory = None

    def _forget_old_audio(self) -> None:
        n_left = round(MAX_AUDIO_S * HEARD_RATE_HZ)
        for item in reversed(self._items):
            for part in item.parts:
                if part.audio is None:
                    continue
                n_left -= len(part.audio)
                # The newest is kept however long it is: it has not been answered yet.
                if n_left < 0 and item is not self._items[-1]:
                    part.audio = None


def context_of(items: Iterable[Item]) -> tuple[ContextItem, ...]:
    """What an agent may know, oldest first. Answers of which nothing was heard are left out."""
    known: list[ContextItem] = []
    for item in items:
        if item.kind == "function_call":
            call = PastCall(
                item_id=item.item_id,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
            known.append(call)
        elif item.kind == "function_call_output":
            result = CallResult(item_id=item.item_id, call_id=item.call_id, output=item.output)
            known.append(result)
        elif (message := _message(item)) is not None:
            known.append(message)
    return tuple(known)


def is_last_silent(items: Sequence[Item]) -> bool:
    """Whether the newest item is of a user who said nothing, and no question is open before."""
    last = items[-1] if items else None
    if last is None or last.kind != "message" or last.role != "user" or _message(last):
        return False
    known = context_of(items)
    before = known[-1] if known else None
    is_question = isinstance(before, Message) and before.role == "user"
    return not is_question and not isinstance(before, CallResult)


def heard_text(text: str, marks: list[tuple[float, int]], heard_s: float) -> str:
    """The words of an answer that had sounded after `heard_s` seconds.

    Between two marks the voice is taken to go on evenly. A word counts once half of it was heard.

    Args:
        text: of the answer.
        marks: (seconds, characters spoken by then), both never falling.
        heard_s: seconds heard.
    """
    if not marks or heard_s <= 0:
        return ""
    idx = bisect.bisect_left(marks, (heard_s, -1))
    if idx == len(marks):
        n_spoken = float(marks[-1][1])
    else:
        before_s, n_before = marks[idx - 1] if idx else (0.0, 0)
        after_s, n_after = marks[idx]
        part = (heard_s - before_s) / (after_s - before_s) if after_s > before_s else 1.0
        n_spoken = n_before + part * (n_after - n_before)
    return text[: _word_border(text, n_spoken)].rstrip()


def _word_border(text: str, n_spoken: float) -> int:
    """The end of the last word of which at least half lies within the first characters."""
    at = min(int(n_spoken), len(text))
    start = at
    while start and not text[start - 1].isspace():
        start -= 1
    end = at
    while end < len(text) and not text[end].isspace():
        end += 1
    return end if n_spoken - start >= (end - start) / 2 else start


def _message(item: Item) -> Message | None:
    texts = [text for part in item.parts if (text := text_that_counts(part)) and text.strip()]
    audio = next((part.audio for part in item.parts if part.audio is not None), None)
    if not texts and (item.role != "user" or audio is None):
        return None
    is_heard = all(part.heard_s is None or part.heard_s >= part.audio_s for part in item.parts)
    return Message(
        item_id=item.item_id,
        role=item.role,
        text=" ".join(texts) if texts else None,
        audio=audio,
        beside=" ".join(
            part.text for part in item.parts if part.kind == "input_text" and part.text
        ),
        memory=item.memory if is_heard else None,
    )


def text_that_counts(part: Part) -> str | None:
    """The text of a part as far as it was heard."""
    if part.heard_s is None or part.text is None:
        return part.text
    return heard_text(part.text, part.marks, part.heard_s)

"""Conversation items from the wire's form to ours and back. No I/O."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Final

from models.text.errors import TextError, check_text
from realtime.agent.base import Role
from realtime.conversation.items import Item, Part, PartKind
from realtime.conversation.protocol import ItemWire, PartWire
from realtime.errors import ProtocolError

PARTS: Final[dict[Role, dict[str, PartKind]]] = {
    "system": {"input_text": "input_text"},
    "user": {"input_text": "input_text", "input_audio": "input_audio"},
    "assistant": {
        "output_text": "output_text",
        "output_audio": "output_audio",
        "text": "output_text",
        "audio": "output_audio",
    },
}
"""What the messages of each role may hold."""


def new_item_id() -> str:
    """An id for an item of ours."""
    return f"item_{secrets.token_hex(8)}"


def item_wire(item: Item) -> ItemWire:
    """An item as clients see it; audio is not sent back."""
    if item.kind == "function_call":
        return ItemWire(
            id=item.item_id,
            type="function_call",
            status=item.status,
            call_id=item.call_id,
            name=item.name,
            arguments=item.arguments,
        )
    if item.kind == "function_call_output":
        return ItemWire(
            id=item.item_id,
            type="function_call_output",
            status=item.status,
            call_id=item.call_id,
            output=item.output,
        )
    return ItemWire(
        id=item.item_id,
        type="message",
        status=item.status,
        role=item.role,
        content=[_part_wire(part) for part in item.parts],
    )


def item_of(wire: ItemWire, max_characters: int) -> tuple[Item, bytes | None]:
    """An item that a client puts into the conversation, and the PCM16 in it, if there is any.

    Args:
        wire: as it came.
        max_characters: of all its text.

    Raises:
        ProtocolError: a field is missing, or does not fit the kind of item.
    """
    item_id = wire.id or new_item_id()
    if wire.type == "message":
        return _message_of(wire, item_id, max_characters)
    wanted = ("call_id", "name", "arguments") if wire.type == "function_call" else ("call_id",)
    for name in wanted:
        if getattr(wire, name) is None:
            raise ProtocolError("missing_field", f"item.{name} is missing", param=f"item.{name}")
    _check_size((wire.arguments or "") + (wire.output or ""), max_characters, "item")
    item = Item(
        item_id=item_id,
        kind=wire.type,
        role="assistant" if wire.type == "function_call" else "user",
        call_id=wire.call_id or "",
        name=wire.name or "",
        arguments=wire.arguments or "",
        output=wire.output or "",
    )
    return item, None


def decoded_audio(audio: str, param: str) -> bytes:
    """The bytes behind base64. Raises: `ProtocolError`."""
    try:
        return base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"{param} is not base64: {error}"
        raise ProtocolError("invalid_audio", message, param=param) from None


def _message_of(wire: ItemWire, item_id: str, max_characters: int) -> tuple[Item, bytes | None]:
    if wire.role is None:
        raise ProtocolError("missing_field", "item.role is missing", param="item.role")
    if not wire.content:
        raise ProtocolError("missing_field", "item.content is missing", param="item.content")
    known = PARTS[wire.role]
    parts, audio, n_characters = [], b"", 0
    for place, part in enumerate(wire.content):
        param = f"item.content.{place}"
        kind = known.get(part.type)
        if kind is None:
            message = f"{param}.type: a message of the {wire.role} holds {', '.join(known)}"
            raise ProtocolError("invalid_value", message, param=f"{param}.type")
        text = part.transcript if kind.endswith("audio") else part.text
        if text is None and (kind != "input_audio" or part.audio is None):
            name = "transcript" if kind.endswith("audio") else "text"
            message = f"{param}.{name} is missing"
            raise ProtocolError("missing_field", message, param=f"{param}.{name}")
        n_characters += len(text or "")
        _check_size(text or "", max_characters, param)
        if part.audio is not None and kind == "input_audio":
            audio += decoded_audio(part.audio, f"{param}.audio")
        parts.append(Part(kind=kind, text=text))
    if n_characters > max_characters:
        raise _too_long(n_characters, max_characters, "item.content")
    return Item(item_id=item_id, role=wire.role, parts=parts), audio or None


def _check_size(text: str, max_characters: int, param: str) -> None:
    if len(text) > max_characters:
        raise _too_long(len(text), max_characters, param)
    try:
        check_text(text)
    except TextError as error:
        raise ProtocolError("invalid_text", str(error), param=param) from None


def _too_long(n_characters: int, max_characters: int, param: str) -> ProtocolError:
    message = f"{param} has {n_characters} characters, at most {max_characters} are taken"
    return ProtocolError("text_too_long", message, param=param)


def _part_wire(part: Part) -> PartWire:
    if part.kind in ("input_audio", "output_audio"):
        return PartWire(type=part.kind, transcript=part.text)
    return PartWire(type=part.kind, text=part.text or "")

"""Events of `parley.v1` (speech lane) to JSON text and back, and the protocol's numbers. Sans-I/O.

A client message goes through `parse_client_event`; whatever is wrong with it comes out as one
`ProtocolError` that names the field. Server events are written by `encode_event` and read by
`parse_server_event` (clients). The event types are `realtime.events`; binary audio is
`realtime.frames`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NoReturn, TypeVar

from pydantic import ValidationError

from realtime.errors import ProtocolError, printable
from realtime.events import (
    CLIENT_EVENTS,
    MAX_ID_CHARACTERS,
    SERVER_EVENTS,
    BaseClientEvent,
    BaseServerEvent,
    ClientEvent,
    ErrorDetail,
    ErrorEvent,
    ErrorType,
    InputTextAppend,
    InputTextEnd,
    InputTextFlush,
    LimitsInfo,
    OptionValue,
    OutputAudioDone,
    OutputAudioPlayout,
    OutputAudioStarted,
    OutputInfo,
    OutputPatch,
    ResponseCancel,
    ResponseCreate,
    ResponseCreated,
    ResponseDone,
    ResponseInfo,
    ResponsePatch,
    ResponseStatus,
    ServerEvent,
    SessionCreated,
    SessionInfo,
    SessionPatch,
    SessionUpdate,
    SessionUpdated,
    StatusDetails,
    StatusError,
    Timing,
    UnknownEvent,
    Usage,
    WireModel,
)
from realtime.frames import AudioCodec

__all__ = [
    "CLIENT_EVENTS",
    "CLOSE_GOING_AWAY",
    "CLOSE_INTERNAL",
    "CLOSE_NORMAL",
    "CLOSE_NO_TEXT",
    "CLOSE_POLICY",
    "CLOSE_TOO_BIG",
    "CLOSE_TRY_AGAIN",
    "MAX_ID_CHARACTERS",
    "OPUS_RATES_HZ",
    "PACKET_MS",
    "PCM_RATES_HZ",
    "REALTIME_PATH",
    "SERVER_EVENTS",
    "SPEECH_PATH",
    "SUBPROTOCOL",
    "AudioCodec",
    "BaseClientEvent",
    "BaseServerEvent",
    "ClientEvent",
    "ErrorDetail",
    "ErrorEvent",
    "ErrorType",
    "InputTextAppend",
    "InputTextEnd",
    "InputTextFlush",
    "LimitsInfo",
    "OptionValue",
    "OutputAudioDone",
    "OutputAudioPlayout",
    "OutputAudioStarted",
    "OutputInfo",
    "OutputPatch",
    "ResponseCancel",
    "ResponseCreate",
    "ResponseCreated",
    "ResponseDone",
    "ResponseInfo",
    "ResponsePatch",
    "ResponseStatus",
    "ServerEvent",
    "SessionCreated",
    "SessionInfo",
    "SessionPatch",
    "SessionUpdate",
    "SessionUpdated",
    "StatusDetails",
    "StatusError",
    "Timing",
    "UnknownEvent",
    "Usage",
    "encode_event",
    "parse_body",
    "parse_client_event",
    "parse_event",
    "parse_server_event",
]

Event = TypeVar("Event", bound=BaseClientEvent)
Body = TypeVar("Body", bound=WireModel)
Loc = tuple[int | str, ...]

SUBPROTOCOL: Final = "parley.v1"
REALTIME_PATH: Final = "/v1/realtime"
SPEECH_PATH: Final = "/v1/audio/speech/stream"
PACKET_MS: Final = 20
MAX_COMMAS: Final = 30_000
"""In one message, for there is one between any two values. Each value costs some microseconds to
check, in which nobody else is served; the longest text and 128 tools have fewer together."""

CLOSE_NORMAL: Final = 1000
CLOSE_GOING_AWAY: Final = 1001
CLOSE_NO_TEXT: Final = 1007
CLOSE_POLICY: Final = 1008
CLOSE_TOO_BIG: Final = 1009
CLOSE_INTERNAL: Final = 1011
CLOSE_TRY_AGAIN: Final = 1013

OPUS_RATES_HZ: Final = (24000, 48000)
PCM_RATES_HZ: Final = (8000, 16000, 22050, 24000, 32000, 44100, 48000)


def encode_event(event: BaseClientEvent | BaseServerEvent) -> str:
    """JSON text of `event`. A client's unset fields are left out, its nulls are kept."""
    if isinstance(event, BaseClientEvent):
        return json.dumps(
            {"type": event.model_dump()["type"], **event.model_dump(exclude_unset=True)}
        )
    return event.model_dump_json()


def parse_client_event(message: str) -> ClientEvent:
    """The speech lane's event in a text message. Raises: `ProtocolError`, as `parse_event`."""
    return parse_event(message, CLIENT_EVENTS)


def parse_event(message: str, events: Mapping[str, type[Event]]) -> Event:
    """The event in a text message.

    Args:
        message: JSON text.
        events: what a client may send, by type.

    Raises:
        ProtocolError: `invalid_event` (not JSON, no or unknown type), `unknown_field`,
            `missing_field`, `invalid_value`, `invalid_text`; param names the field, and event_id is
            the client's where it could be read.
    """
    raw = _load_object(message)
    event_id = raw.get("event_id")
    known_id = event_id if isinstance(event_id, str) and _is_id(event_id) else None
    kind = raw.get("type")
    if not isinstance(kind, str):
        raise ProtocolError(
            "invalid_event", "type is missing or no string", param="type", event_id=known_id
        )
    model = events.get(kind)
    if model is None:
        known = ", ".join(events)
        raise ProtocolError(
            "invalid_event",
            f"unknown type {printable(kind)!r}; known: {known}",
            param="type",
            event_id=known_id,
        )
    return _checked(raw, model, known_id)


def parse_body(body: str, model: type[Body]) -> Body:
    """The object in the body of a request.

    Raises:
        ProtocolError: `invalid_json`, or as `parse_event`.
    """
    return _checked(_load_object(body, code="invalid_json"), model, None)


def parse_server_event(message: str) -> ServerEvent | UnknownEvent:
    """The event in a server's text message, for clients; unknown types come as `UnknownEvent`.

    Raises:
        ProtocolError: not an event.
    """
    raw = _load_object(message)
    kind = raw.get("type")
    model = SERVER_EVENTS.get(kind, UnknownEvent) if isinstance(kind, str) else UnknownEvent
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        _raise_field_error(error, raw, None)


def _checked(raw: dict[str, object], model: type[Body], event_id: str | None) -> Body:
    try:
        value = model.model_validate(raw)
    except ValidationError as error:
        _raise_field_error(error, raw, event_id)
    bad_path = _lone_surrogate_path(raw)
    if bad_path is not None:
        raise _surrogate_error(bad_path, event_id)
    return value


def _load_object(message: str, code: str = "invalid_event") -> dict[str, object]:
    if message.count(",") > MAX_COMMAS:
        raise ProtocolError(code, f"too many values: a message may hold {MAX_COMMAS} commas")
    try:
        # NOTE: RecursionError is what the parser raises on very deep nesting, not a fault of ours.
        value = json.loads(message, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(code, f"not JSON: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise ProtocolError(code, "a message must be a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_id(value: str) -> bool:
    return len(value) <= MAX_ID_CHARACTERS and not _has_lone_surrogate(value)


def _has_lone_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _lone_surrogate_path(message: dict[str, object]) -> str | None:
    """Where in a message a string holds half a UTF-16 pair.

    JSON can write one as an escape; it could not be sent back.
    """
    # A stack of our own: a client's nested object may be deeper than calls can go.
    waiting: list[tuple[str, object]] = [("", message)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            if _has_lone_surrogate(value):
                return path
        elif isinstance(value, list):
            waiting.extend((f"{path}.{place}", inner) for place, inner in enumerate(value))
        elif isinstance(value, dict):
            for key, inner in value.items():
                inner_path = f"{path}.{printable(key)}".lstrip(".")
                if _has_lone_surrogate(key):
                    return inner_path
                waiting.append((inner_path, inner))
    return None


def _surrogate_error(param: str, event_id: str | None) -> ProtocolError:
    message = f"{param} holds a lone surrogate; send Unicode text"
    return ProtocolError("invalid_text", message, param=param, event_id=event_id)


def _raise_field_error(
    error: ValidationError, raw: dict[str, object], event_id: str | None
) -> NoReturn:
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    paths = [_known_path(fault["loc"], raw, fault["type"]) for fault in faults]
    # Where a value may be of several kinds, it is most likely meant for the one it fits furthest.
    place = max(range(len(faults)), key=lambda place: len(paths[place]))
    first, param = faults[place], ".".join(printable(str(step)) for step in paths[place])
    if first["type"] == "extra_forbidden":
        code, message = "unknown_field", f"unknown field {param!r}"
    elif first["type"] == "missing":
        code, message = "missing_field", f"{param} is missing"
    elif first["type"] == "string_unicode":
        raise _surrogate_error(param or "a field name", event_id) from None
    else:
        code, message = "invalid_value", f"{param}: {printable(first['msg'])}"
    raise ProtocolError(code, message, param=param, event_id=event_id) from None


def _known_path(loc: Loc, raw: dict[str, object], fault: str) -> Loc:
    """The validator's path as far as the client's message goes; a missing field is one step more.

    The validator's own path may hold the names of union members, which are no fields.
    """
    path: list[int | str] = []
    value: object = raw
    for place, step in enumerate(loc):
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        elif not isinstance(value, dict):
            break
        elif step in value or (fault == "missing" and place == len(loc) - 1):
            value = value.get(step)
        else:
            continue
        path.append(step)
    return tuple(path)

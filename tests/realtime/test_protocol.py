"""Whatever a client sends becomes a typed event or one named error."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.errors import ProtocolError
from realtime.events import (
    ErrorDetail,
    ErrorEvent,
    InputTextAppend,
    ResponseCreate,
    ResponsePatch,
    SessionPatch,
    SessionUpdate,
    UnknownEvent,
)
from realtime.protocol import (
    CLIENT_EVENTS,
    encode_event,
    parse_client_event,
    parse_server_event,
)
from tests.cases import wire_cases

FAST = settings(deadline=None, max_examples=150)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("type", "event_id", "text", "session", "response", "response_id", "heard_ms"),
        *("metadata", "model", "voice", "language", "options", "output", "codec"),
    ]
)
CODES = ("invalid_event", "unknown_field", "missing_field", "invalid_value", "invalid_text")
EVENT_LIKE = st.fixed_dictionaries(
    {"type": st.sampled_from([*CLIENT_EVENTS, "nope"])},
    optional={"event_id": JSON, "text": JSON, "response_id": JSON, "heard_ms": JSON},
).flatmap(lambda one: st.dictionaries(FIELDS, JSON, max_size=3).map(lambda more: more | one))


def error_of(message):
    with pytest.raises(ProtocolError) as caught:
        parse_client_event(message)
    return caught.value


@FAST
@given(message=st.text(max_size=60) | JSON.map(json.dumps) | EVENT_LIKE.map(json.dumps))
def test_any_text_is_an_event_or_a_named_error_that_can_be_sent(message):
    try:
        event = parse_client_event(message)
    except ProtocolError as error:
        fault = error
    else:
        assert parse_client_event(encode_event(event)) == event
        return
    assert fault.code in CODES
    detail = ErrorDetail(
        type="invalid_request_error",
        code=fault.code,
        message=fault.message,
        param=fault.param,
        event_id=fault.event_id,
    )
    assert encode_event(ErrorEvent(event_id="e", error=detail)).encode()


@pytest.mark.parametrize("case", ["not JSON", "JSON array", "no type", "unknown type"])
def test_wire_case(case):
    wire = wire_cases()[case]
    error = error_of(wire["send"])
    assert error.code == "invalid_event"
    if case == "no type":
        assert error.param == "type"
    if case == "unknown type":
        assert "'nope'" in error.message


def test_deep_nesting_is_an_error_and_no_crash():
    assert error_of("[" * 100_000 + "]" * 100_000).code == "invalid_event"
    assert error_of('{"type":' + "[" * 100_000).code == "invalid_event"


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "input_text.append"}, "missing_field", "text"),
        ({"type": "input_text.append", "text": 5}, "invalid_value", "text"),
        ({"type": "input_text.end", "extra": 1}, "unknown_field", "extra"),
        ({"type": "session.update"}, "missing_field", "session"),
        ({"type": "session.update", "session": {"voice": 17}}, "invalid_value", "session.voice"),
        ({"type": "session.update", "session": {"speed": 1}}, "unknown_field", "session.speed"),
        (
            {"type": "session.update", "session": {"output": {"sample_rate_hz": 16001}}},
            "invalid_value",
            "session.output.sample_rate_hz",
        ),
        (
            {"type": "session.update", "session": {"output": {"codec": "mp3"}}},
            "invalid_value",
            "session.output.codec",
        ),
        (
            {"type": "session.update", "session": {"output": {"bitrate_bps": 100}}},
            "invalid_value",
            "session.output.bitrate_bps",
        ),
        (
            {"type": "session.update", "session": {"output": {"pace": "slow"}}},
            "invalid_value",
            "session.output.pace",
        ),
        (
            {"type": "response.create", "response": {"options": {"a": [1]}}},
            "invalid_value",
            "response.options.a",
        ),
        (
            {"type": "response.create", "response": {"metadata": {"k": 1}}},
            "invalid_value",
            "response.metadata.k",
        ),
        (
            {"type": "output_audio.playout", "response_id": "r", "heard_ms": True},
            "invalid_value",
            "heard_ms",
        ),
        (
            {"type": "output_audio.playout", "response_id": "r", "heard_ms": -1},
            "invalid_value",
            "heard_ms",
        ),
        ({"type": "response.cancel", "response_id": 1}, "invalid_value", "response_id"),
        (
            {"type": "response.create", "response": {"options": {"a": {"b": 1}}}},
            "invalid_value",
            "response.options.a",
        ),
    ],
)
def test_the_field_at_fault_is_named_and_the_id_echoed(event, code, param):
    error = error_of(json.dumps(event | {"event_id": "mine"}))
    assert (error.code, error.param, error.event_id) == (code, param, "mine")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "session.update", "session": {str(n): n for n in range(600_000)}},
        {"type": "input_text.append", "text": "," * 40_000},
        {"type": "input_text.end", "x": [0] * 2_000_000},
    ],
    ids=["fields", "commas", "list"],
)
def test_what_would_take_long_to_check_is_refused_unread(event, monkeypatch):
    """8 MiB of unknown fields took seconds, in which no other session was served."""
    message = json.dumps(event)
    monkeypatch.setattr(json, "loads", None)
    error = error_of(message)
    assert (error.code, error.param) == ("invalid_event", None)
    assert "30000" in error.message


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(value):
    message = f'{{"type":"output_audio.playout","response_id":"r","heard_ms":{value}}}'
    assert error_of(message).code in {"invalid_event", "invalid_value"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ('{"type":"input_text.append","text":"ok \\ud800 fine"}', "text"),
        (
            '{"type":"response.create","response":{"metadata":{"k":"\\ud800"}}}',
            "response.metadata.k",
        ),
        ('{"type":"input_text.end","event_id":"\\ud800"}', "event_id"),
    ],
)
def test_half_a_surrogate_pair_is_invalid_text(message, param):
    error = error_of(message)
    assert (error.code, error.param, error.event_id) == ("invalid_text", param, None)


def test_a_whole_surrogate_pair_is_one_character():
    event = parse_client_event('{"type":"input_text.append","text":"\\ud83d\\ude42"}')
    assert event == InputTextAppend(text="\N{SLIGHTLY SMILING FACE}")


def test_null_and_absent_differ_in_a_patch():
    patch = SessionPatch(voice=None, options={"speed": None})
    message = encode_event(SessionUpdate(session=patch))
    assert json.loads(message) == {
        "type": "session.update",
        "session": {"voice": None, "options": {"speed": None}},
    }
    event = parse_client_event(message)
    assert event.session.model_fields_set == {"voice", "options"}


def test_metadata_is_bounded():
    many = {str(n): "x" for n in range(17)}
    with pytest.raises(ValueError, match="metadata"):
        ResponseCreate(response=ResponsePatch(metadata=many))


def test_a_client_passes_over_events_of_a_newer_server():
    event = parse_server_event('{"type":"response.fancy","event_id":"e","x":1}')
    assert event == UnknownEvent(type="response.fancy", event_id="e")


def test_a_client_ignores_new_fields_of_known_events():
    event = parse_server_event(
        '{"type":"error","event_id":"e","new":1,"error":'
        '{"type":"server_error","code":"c","message":"m","newer":2}}'
    )
    assert isinstance(event, ErrorEvent)
    assert event.error.code == "c"

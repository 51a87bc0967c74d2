"""Whatever a client sends is an order, or is refused by name: nothing else comes out of reading."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import FormData, UploadFile

from realtime.config import GatewayConfig
from realtime.conversation.conversing import Conversing
from realtime.errors import ProtocolError
from realtime.gateway import Gateway
from realtime.lanes import speech_order, transcription_order
from realtime.lanes.http_errors import RefusedError
from tests.fakes import fake_spec
from tests.realtime.talk_harness import LoudnessDetector, ScriptedAgent

Order = TypeVar("Order")

GATEWAY = cast(Gateway, SimpleNamespace(config=GatewayConfig(), speaking={"fake": fake_spec()}))
CONVERSING = Conversing(
    agents=cast(Any, {"scripted": ScriptedAgent()}), detector=cast(Any, LoudnessDetector())
)
WORDS = st.sampled_from(
    ["fake", "ada", "alloy", "tts-1", "mp3", "sse", "en", "speed", "style", "loud", "x" * 300, ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
SPEECH_FIELDS = st.sampled_from([*speech_order.SpeechBody.model_fields, "stream"])
FORM_FIELDS = st.sampled_from([*sorted(transcription_order.FIELDS), "include[]", "file"])
FORM_VALUES = st.text(max_size=8) | st.sampled_from(
    ["json", "srt", "true", "0.5", "nan", "1e999", "segment", "whisper-1", "scripted"]
)


Refusal = ProtocolError | RefusedError


def read(read_order: Callable[[], Order]) -> Order | Refusal:
    """The order, or why there is none. Other exceptions are bugs."""
    try:
        return read_order()
    except (ProtocolError, RefusedError) as fault:
        return fault


@settings(max_examples=200)
@given(st.dictionaries(SPEECH_FIELDS, VALUES, max_size=6), st.booleans())
def test_any_json_is_an_order_or_is_refused(fields, has_input):
    body = json.dumps({**({"input": "Hello."} if has_input else {}), **fields})
    found = read(lambda: speech_order.read_order(body, GATEWAY))
    if isinstance(found, Refusal):
        assert found.message.encode()
        assert found.param is None or found.param.split(".")[0] in [*fields, "input"]
    else:
        assert found.settings.model == "fake"
        assert found.settings.voice in (None, "ada", "bob")


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_any_other_text_is_refused(body):
    found = read(lambda: speech_order.read_order(body, GATEWAY))
    assert isinstance(found, Refusal)
    assert found.code in ("invalid_json", "missing_field", "unknown_field", "invalid_text")


@settings(max_examples=200)
@given(st.lists(st.tuples(FORM_FIELDS, FORM_VALUES), max_size=6), st.booleans())
def test_any_form_is_an_order_or_is_refused(fields, has_file):
    form = FormData([*fields, *([("file", UploadFile(io.BytesIO(b"x")))] if has_file else [])])
    found = read(lambda: transcription_order.read_order(form, CONVERSING))
    if isinstance(found, Refusal):
        assert found.message.encode()
        assert found.param
    else:
        assert has_file
        assert found.agent.name == "scripted"

"""What a hostile client may send, as `hypothesis` draws it: right once, changed, or never right."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.realtime.lanes.garbled import LEAVES, OPENAI, PARLEY, SPEECH

Sent = str | bytes | None
"""A text message, a binary message, or None: wait until everything so far has been looked at."""

N_MESSAGES = 60
MAX_SHOWN = 160
ODD_LEAVES: list[Any] = [
    *LEAVES,
    *(10**400, -(10**400), 2**63, 5e-324, "a" * 30_000, "\u202e\u05d0", "e\u0301" * 9, "item_last"),
    *("resp_1", "resp_2", "A", "AA==", "AAA=", "A" * 4096, "????", [[]] * 600, {"a": {"b": [{}]}}),
    *({"type": "mcp"}, {"type": None}, {"\x00": 1}, {str(n): n for n in range(70)}),
]
NAMES = ["x", "", "type", "audio", "\ud800", "id", "event_id", "format", "a" * 300]
RAW = [
    *(
        "",
        " ",
        "{",
        "null",
        "[]",
        "0",
        '"',
        "{}",
        '{"type": NaN}',
        '{"type": 1}',
        "\x00",
        "\ufeff{}",
    ),
    '{"type": "session.update", "type": "response.create"}',
    '{"type": "session.update", "session": ' + "[" * 40_000,
    '{"type": "response.create", "response": ' + '{"a":' * 3000 + "1" + "}" * 3001,
    '{"type": "session.update", "event_id": "' + "e" * 200_000 + '", "session": {}}',
    '{"type": "input_audio_buffer.append", "audio": "' + "A" * 400_000 + '"}',
    '{"type": "conversation.item.truncate", "item_id": "a", "audio_end_ms": 1e999}',
    '{"type": "response.cancel", "n": ' + "9" * 5000 + "}",
]
TEMPLATES = {"openai": OPENAI, "parley": PARLEY, "speech": SPEECH}
HEADERS = [struct.pack("<BBHI", 1, codec, 0, 0) for codec in range(6)]


def one_of(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of them, by its place: `hypothesis` shows what it draws from, and these are large."""
    return st.integers(0, len(values) - 1).map(values.__getitem__)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
frames = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda head, body: head + body, st.sampled_from(HEADERS), st.binary(max_size=80)),
    one_of([head + bytes(n) for head in HEADERS for n in (1, 2, 959, 1920, 50_000)]),
)


@st.composite
def changed(draw: st.DrawFn, lane: str) -> str:
    """A right message with one to three values, names or places changed."""
    message = copy.deepcopy(draw(one_of(TEMPLATES[lane])))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = list(_places(message))
        if not places:
            break
        holder, key = draw(one_of(places))
        match draw(st.sampled_from(["value", "value", "value", "drop", "name", "any", "swap"])):
            case "value":
                holder[key] = copy.deepcopy(draw(one_of(ODD_LEAVES)))
            case "any":
                holder[key] = draw(anything)
            case "drop":
                del holder[key]
            case "name" if isinstance(holder, dict):
                holder[draw(one_of(NAMES))] = holder.pop(key)
            case "name":
                holder.append(holder[key])
            case _:
                other, other_key = draw(one_of(places))
                holder[key] = copy.deepcopy(other[other_key])
    return json.dumps(message)


class Session(list[Sent]):
    """Messages in order; shown short."""

    def __repr__(self) -> str:
        shown = (one if one is None else one[:MAX_SHOWN] for one in self)
        return f"Session({list(shown)})"


def sessions(lane: str) -> st.SearchStrategy[Session]:
    """Whole sessions, in any order."""
    right = one_of([json.dumps(one) for one in TEMPLATES[lane]])
    odd = st.one_of(
        one_of(RAW),
        st.builds(json.dumps, anything),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        frames,
        st.none(),
    )
    kinds = [changed(lane), changed(lane), changed(lane), right, right, odd]
    one = st.integers(0, len(kinds) - 1).flatmap(kinds.__getitem__)
    return st.lists(one, min_size=N_MESSAGES, max_size=N_MESSAGES).map(Session)


def _places(value: Any) -> Any:
    """(holder, key) of everything inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield value, key
        if isinstance(one, dict | list):
            yield from _places(one)

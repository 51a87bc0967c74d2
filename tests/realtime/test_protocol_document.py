"""docs/protocol.md says what the code does: every event, field, code and limit, nothing else."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from realtime import events, sockets
from realtime import protocol as wire
from realtime.config import GatewayConfig
from realtime.conversation import answering, incoming, items, listener, protocol, session
from realtime.conversation.endpointing import EndpointSettings
from realtime.conversation.events import CONVERSATION_SERVER_EVENTS
from realtime.conversation.protocol import CONVERSATION_CLIENT_EVENTS
from realtime.conversation.turns import StopReason
from realtime.lanes.openai.client_events import OPENAI_CLIENT_EVENTS
from realtime.lanes.openai.form import FIELDS, PACKETS_PER_MESSAGE
from realtime.protocol import CLIENT_EVENTS, SERVER_EVENTS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/protocol.md").read_text()
OPENAI_AUDIO = {
    "response.output_audio.delta",
    "response.output_audio.done",
    "rate_limits.updated",
}
"""Made by the lane's form of what the core tells otherwise."""
OF_ALL = {"type", "event_id"}


def section(title: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    heading = re.search(rf"^(#+) {re.escape(title)}$", DOCUMENT, re.MULTILINE)
    assert heading, f"no section {title!r}"
    rest = DOCUMENT[heading.end() :]
    return re.split(rf"^#{{1,{len(heading[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> Iterator[list[str]]:
    """Cells of the tables in a section, without their headings."""
    for line in section(title).splitlines():
        if line.startswith("| `") or re.match(r"\| \d", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def named(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def described(title: str) -> dict[str, set[str]]:
    """Fields of each event in the tables of a section."""
    return {name: top_fields(cells[1]) for cells in rows(title) for name in named(cells[0])}


def top_fields(cell: str) -> set[str]:
    """Names in backticks, without what is inside of objects."""
    text = ", ".join(named(cell))
    while text != (text := re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", "", text)):
        pass
    return set(re.findall(r"[a-z_]+", text))


LANES = {
    "Speech: what a client sends": CLIENT_EVENTS,
    "Speech: what the server says": SERVER_EVENTS,
    "Conversation: what a client sends": CONVERSATION_CLIENT_EVENTS,
    "Conversation: what the server says": CONVERSATION_SERVER_EVENTS,
    "OpenAI: what a client sends": OPENAI_CLIENT_EVENTS,
}


@pytest.mark.parametrize("title", LANES)
def test_every_event_is_described_with_its_fields(title):
    told = described(title)
    known = {name: set(event.model_fields) - OF_ALL for name, event in LANES[title].items()}
    assert told == known


def test_every_event_to_openai_clients_is_described():
    told = {
        name: top_fields(cells[1])
        for cells in rows("OpenAI: what the server says")
        for name in named(cells[0])
    }
    made = {event.model_fields["type"].default: set(names) for event, names in FIELDS.items()}
    assert told.keys() == made.keys() | OPENAI_AUDIO
    for name, fields in made.items():
        assert fields <= told[name], name


# Codes.

CODE = re.compile(r"[a-z]+(_[a-z]+)+|overloaded")


def codes_in_code() -> dict[str, set[str]]:
    """Every string that is given, or defaults, to a parameter `code` of ours, and where."""
    trees = {
        path: ast.parse(path.read_text())
        for package in ("realtime", "engine", "models")
        for path in sorted((ROOT / package).rglob("*.py"))
        if "client" not in path.parts
    }
    places: dict[str, set[int]] = defaultdict(set)
    for tree in trees.values():
        for node in ast.walk(tree):
            name, names = parameters(node)
            if "code" in names:
                places[name].add(names.index("code"))
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        constants = dict(named_values(tree))
        for node in ast.walk(tree):
            for value in given(node, places):
                known = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                for one in ast.walk(known):
                    if isinstance(one, ast.Constant) and CODE.fullmatch(str(one.value)):
                        found[one.value].add(str(path.relative_to(ROOT)))
    return found


def parameters(node: ast.AST) -> tuple[str, list[str]]:
    """Name and positional parameters of what is called: a function, a class by its `__init__`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
        return node.name, [one.arg for one in node.args.args if one.arg not in ("self", "cls")]
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                return node.name, [one.arg for one in inner.args.args[1:]]
    return "", []


def named_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Constants of a module."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node.value


def given(node: ast.AST, places: dict[str, set[int]]) -> Iterator[ast.expr]:
    """Values for `code`."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        yield from (one.value for one in node.keywords if one.arg == "code")
        yield from (node.args[at] for at in places.get(name, ()) if at < len(node.args))
    elif isinstance(node, ast.FunctionDef) and (defaults := node.args.defaults):
        pairs = zip(node.args.args[-len(defaults) :], defaults, strict=True)
        yield from (value for one, value in pairs if one.arg == "code")


def test_every_code_is_described():
    told = {name for cells in rows("Codes") for name in named(cells[0])}
    made = codes_in_code()
    assert not {name: made[name] for name in made.keys() - told}
    assert not told - made.keys()


def test_every_close_is_described():
    closes = {value for name, value in vars(wire).items() if name.startswith("CLOSE_")}
    told = {int(cells[0]) for cells in rows("Close codes")}
    assert told == closes | {1002}, "that one is of the WebSocket itself"


def test_every_reason_is_described():
    told = {name for cells in rows("How a response ends") for name in named(cells[1])}
    assert told >= set(get_args(StopReason))
    stated = get_args(events.StatusDetails.model_fields["type"].annotation)
    assert {name for cells in rows("How a response ends") for name in named(cells[0])} == {
        "completed",
        *stated,
    }


# Limits.

CONFIG = GatewayConfig()
SEND = CONFIG.send
LIMITS = {
    "max_message_bytes": f"{CONFIG.max_message_bytes >> 20} MiB; "
    f"{CONFIG.max_audio_message_bytes >> 20} MiB in a conversation",
    "max_messages_per_s": f"{CONFIG.max_messages_per_s:g}, and {CONFIG.message_burst} at once",
    "max_text_characters": f"{CONFIG.max_text_characters}:",
    "max_queued_responses": f"{CONFIG.max_queued_responses} spoken",
    "first_message_timeout_s": f"{CONFIG.first_message_timeout_s:g} s",
    "idle_timeout_s": f"{CONFIG.idle_timeout_s:g} s",
    "max_session_s": {3600.0: "an hour"}[CONFIG.max_session_s],
    "max_sessions": f"{CONFIG.max_sessions} sockets",
    "max_audio_s": f"{CONFIG.max_audio_s / 60:g} minutes",
    "pings, pongs and fragments": f"{sockets.FRAMES_PER_S:g} a second, and {sockets.FRAME_BURST}",
    "messages that wait": f"{incoming.MAX_EVENTS}; {incoming.MAX_EVENT_BYTES >> 20} MiB of events, "
    f"{incoming.MAX_AUDIO_BYTES >> 20} MiB of audio",
    "audio that is not committed": f"{listener.MAX_BUFFER_S:g} s with push to talk; a turn that is "
    f"found lasts {EndpointSettings().max_turn_ms / 1000:g} s",
    "items": f"{items.MAX_ITEMS}; the oldest is deleted. {protocol.MAX_PARTS} parts in one, "
    f"{protocol.MAX_GIVEN_ITEMS} in `input`, audio of the last {items.MAX_AUDIO_S:g} s",
    "items with audio": f"{session.MAX_TRANSCRIBING} being",
    "responses aside": f"{answering.MAX_ASIDE} at once",
    "instructions, tools, options": f"{protocol.MAX_INSTRUCTIONS} characters; "
    f"{protocol.MAX_TOOLS} tools; {events.MAX_OPTIONS} options; `max_output_tokens` "
    f"{protocol.MAX_OUTPUT_TOKENS}",
    "unsent audio": f"over {SEND.high_s:g} s or {SEND.high_bytes >> 10} KiB the model pauses; who "
    f"takes nothing for {SEND.blocked_s:g} s is closed, past {SEND.hard_s:g} s or "
    f"{SEND.hard_bytes >> 20} MiB after {SEND.hard_blocked_s:g} s",
    "unsent events": f"{SEND.max_events}",
    "a stop of the server": f"has {CONFIG.drain_timeout_s:g} s to end",
}


def test_every_limit_is_described():
    lines = [line for line in section("Limits").splitlines() if line.startswith("| ")]
    cells = (re.split(r"(?<!\\)\|", line) for line in lines[1:])
    told = {one[1].strip().strip("`"): one[2].strip() for one in cells}
    assert told.keys() == LIMITS.keys()
    for name, text in LIMITS.items():
        assert text in told[name], name
    stated = set(events.LimitsInfo.model_fields)
    assert stated == set(list(LIMITS)[: len(stated)]), "what a session states comes first"


def test_the_numbers_between_the_tables():
    ping_s = f"a ping every {CONFIG.ping_interval_s:g} s, {CONFIG.ping_interval_s:g} s for its"
    assert ping_s in " ".join(section("Limits").split())
    assert f"at least {listener.MIN_COMMIT_MS} ms" in section("Conversation: what a client sends")
    assert f"({events.MAX_ID_CHARACTERS} characters)" in DOCUMENT
    longest_ms = wire.PACKET_MS * PACKETS_PER_MESSAGE
    assert f"{wire.PACKET_MS} to {longest_ms} ms" in section("OpenAI: what the server says")

"""Hostile sessions on all lanes, by the thousand messages: the server lives, nothing is left.

After each session another client still gets its answer; the hostile one is either told that its
settings have changed, like anybody, or was closed by a documented code.
"""

import asyncio
import json
from collections import Counter, deque
from contextlib import AsyncExitStack

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from realtime.frames import parse_audio_frame
from realtime.protocol import REALTIME_PATH, SPEECH_PATH, SUBPROTOCOL
from tests.realtime.lanes.drawn import sessions
from tests.realtime.lanes.fuzz_house import SPEAKER, fuzz_house
from tests.realtime.lanes.ga_client import checked

LANES = {
    "openai": (REALTIME_PATH, None),
    "parley": (REALTIME_PATH, [SUBPROTOCOL]),
    "speech": (SPEECH_PATH, [SUBPROTOCOL]),
}
CLOSES = {1000, 1001, 1008, 1009, 1013}
"""Documented, and no fault of the server's."""
N_SESSIONS = {"openai": 145, "parley": 140, "speech": 65}
PATIENCE_S = 10.0
HUGE = json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 9_000_000})
LARGE = json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA" * 1_500_000})

sent: Counter[str] = Counter()
closes: Counter[int] = Counter()
"""Over the module, by lane and by code."""


class Fuzzed:
    """One socket; `open_ids` are of responses that are not over."""

    def __init__(self, socket, lane):
        self._socket = socket
        self._lane = lane
        self.open_ids = set()
        self.n_updates = 0
        self.session_id = ""
        self.item_id = "item_last"
        self._changed = asyncio.Event()
        self._marks = set()
        self.last = deque(maxlen=8)

    async def read(self):
        """Everything, until the socket closes."""
        async for message in self._messages():
            if isinstance(message, bytes):
                assert self._lane != "openai", "these clients know no binary messages"
                parse_audio_frame(message)
            else:
                self._take(checked(message) if self._lane == "openai" else json.loads(message))
            self._changed.set()

    async def _messages(self):
        try:
            while True:
                yield await self._socket.recv()
        except ConnectionClosed:
            return

    def _take(self, event):
        self.last.append(str(event)[:300])
        match event["type"]:
            case "session.created":
                self.session_id = event["session"]["id"]
            case "session.updated":
                self.n_updates += 1
            case "response.created":
                assert event["response"]["id"] not in self.open_ids
                self.open_ids.add(event["response"]["id"])
            case "response.done":
                self.open_ids.remove(event["response"]["id"])
            case "response.output_item.added":
                self.item_id = event["item"]["id"]
            case "error":
                self._marks.add(event["error"]["event_id"])

    async def send(self, message):
        if isinstance(message, str):
            name = self.session_id.removeprefix("sess_")
            message = message.replace("resp_", f"resp_{name}_").replace("item_last", self.item_id)
        await self._socket.send(message)

    async def settle(self, number):
        """Wait until everything so far has been looked at."""
        mark = f"mark {number}"
        kind, name = "conversation.item.retrieve", "item_id"
        if self._lane == "speech":
            kind, name = "response.cancel", "response_id"
        await self.send(json.dumps({"type": kind, name: "nobody", "event_id": mark}))
        await self.until(lambda: mark in self._marks, "an answer to the last message")

    async def update(self):
        """Change the session, like anybody."""
        n_updates = self.n_updates
        session = {"voice": None} if self._lane == "speech" else {"type": "realtime", "tools": []}
        await self.send(json.dumps({"type": "session.update", "session": session}))
        await self.until(lambda: self.n_updates > n_updates, "session.updated")

    async def finish(self):
        """Stop every response; each of them ends."""
        for response_id in list(self.open_ids):
            await self._socket.send(
                json.dumps({"type": "response.cancel", "response_id": response_id})
            )
        await self.until(lambda: not self.open_ids, f"response.done of {self.open_ids}")

    async def until(self, condition, what):
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never: {what}; last events: {list(self.last)}") from None


async def hostile(port, lane, messages, is_leaving):
    """Send them all, then perhaps just leave; whichever way it ends, it ends well."""
    path, offers = LANES[lane]
    url = f"ws://127.0.0.1:{port}{path}"
    async with connect(url, compression=None, proxy=None, subprotocols=offers) as socket:
        client = Fuzzed(socket, lane)
        reading = asyncio.create_task(client.read())
        acting = asyncio.create_task(act(client, lane, messages, is_leaving))
        await asyncio.wait([reading, acting], return_when=asyncio.FIRST_COMPLETED)
        if not acting.done() or isinstance(acting.exception(), ConnectionClosed):
            acting.cancel()
            await reading
            closes[socket.close_code] += 1
            assert socket.close_code in CLOSES, (socket.close_code, socket.close_reason)
            return
        await acting
        assert not reading.done() or reading.exception() is None, reading.exception()
        if is_leaving:
            socket.transport.abort()
        await socket.close()
        await reading


async def act(client, lane, messages, is_leaving):
    await client.until(lambda: client.session_id, "session.created")
    for number, message in enumerate(messages):
        if message is None:
            await client.settle(number)
        else:
            await client.send(message)
            sent[lane] += 1
    if is_leaving:
        return
    await client.settle("last")
    await client.update()
    await client.finish()


class Witness:
    """A client that does nothing wrong, on any lane."""

    def __init__(self, socket, lane):
        self._socket, self._lane = socket, lane

    async def is_answered(self):
        if self._lane == "speech":
            await self._send("input_text.append", text="hey")
            await self._send("input_text.end")
        else:
            content = [{"type": "input_text", "text": "hey"}]
            asked = {"type": "message", "role": "user", "content": content}
            await self._send("response.create", response={"conversation": "none", "input": [asked]})
        done = await self._until("response.done")
        assert done["response"]["status"] == "completed", done

    async def _send(self, kind, **fields):
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def _until(self, kind):
        while True:
            message = await self._socket.recv()
            if isinstance(message, str) and (event := json.loads(message))["type"] == kind:
                return event


class Scene:
    """The house, a witness on each lane, and the loop that all of them run on."""

    def __init__(self, runner, house, witnesses):
        self._runner, self._house, self._witnesses = runner, house, witnesses

    def play(self, lane, messages, *, is_leaving=False):
        async def session():
            async with asyncio.timeout(3 * PATIENCE_S):
                await hostile(self._house.port, lane, messages, is_leaving)
                await self._witnesses[lane].is_answered()
                await self._house.nothing_left()

        self._runner.run(session())


@pytest.fixture(scope="module")
def scene():
    stack = AsyncExitStack()

    async def begin():
        house = await stack.enter_async_context(fuzz_house())
        witnesses = {}
        for lane, (path, offers) in LANES.items():
            url = f"ws://127.0.0.1:{house.port}{path}?model={SPEAKER}"
            socket = await stack.enter_async_context(
                connect(url, compression=None, proxy=None, subprotocols=offers, max_queue=None)
            )
            witnesses[lane] = Witness(socket, lane)
            await witnesses[lane].is_answered()
        house.remember()
        return house, witnesses

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield Scene(runner, *runner.run(begin()))
        runner.run(stack.aclose())


def fuzzed(lane):
    return settings(
        max_examples=N_SESSIONS[lane],
        deadline=None,
        derandomize=True,
        database=None,
        # A session that hangs would be tried a hundred times more to find a shorter one.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@fuzzed("openai")
@given(sessions("openai"), st.booleans())
def test_hostile_sessions_of_openai_clients(scene, messages, is_leaving):
    scene.play("openai", messages, is_leaving=is_leaving)


@pytest.mark.slow
@fuzzed("parley")
@given(sessions("parley"), st.booleans())
def test_hostile_sessions_of_parley_clients(scene, messages, is_leaving):
    scene.play("parley", messages, is_leaving=is_leaving)


@pytest.mark.slow
@fuzzed("speech")
@given(sessions("speech"), st.booleans())
def test_hostile_sessions_of_the_speech_lane(scene, messages, is_leaving):
    scene.play("speech", messages, is_leaving=is_leaving)


@pytest.mark.parametrize("lane", LANES)
def test_the_largest_messages(scene, lane):
    scene.play(lane, [LARGE, LARGE, LARGE])
    scene.play(lane, [HUGE])
    assert closes[1009] > 0


def test_enough_was_sent():
    """Where the whole module runs."""
    if len(sent) < len(LANES):
        pytest.skip("some lanes were left out of this run")
    assert sum(sent.values()) >= 20_000, sent

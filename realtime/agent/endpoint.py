"""An OpenAI-compatible HTTP endpoint: requests with timeouts and bounded retries, answers streamed.

Event loop only. Everything that can go wrong becomes a `StageError` with one of these codes:
`endpoint_unreachable`, `endpoint_timeout`, `endpoint_overloaded`, `endpoint_refused` (the request
is not taken: key, model, fields), `endpoint_error` (a fault of its own), `bad_response`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from realtime.agent.errors import AgentSetupError, StageError
from realtime.errors import printable

FIRST_WAIT_S: Final = 0.25
"""Before the first retry; then twice as long each time."""
LONGEST_WAIT_S: Final = 2.0
"""Somebody waits for the answer: an endpoint that wants more patience has failed."""
MAX_LINE_BYTES: Final = 1_048_576
MAX_BODY_BYTES: Final = 4_194_304
MAX_SHOWN_BYTES: Final = 4096
HALF_A_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""As JSON escapes it; most are halves of a whole pair."""
RETRIED: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
OVERLOADED: Final = frozenset((429, 503))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Where an endpoint is and how long it may take.

    Args:
        url: up to and with the version, e.g. `http://127.0.0.1:8000/v1`.
        model: that it is asked for.
        api_key: sent as a bearer token; None sends none.
        connect_s: to connect.
        silence_s: between two pieces of an answer, and before the first.
        total_s: for all of an answer.
        n_retries: after a first failure, before anything of the answer has come.

    Raises:
        AgentSetupError: not an HTTP address, or a time that is not positive.
    """

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    connect_s: float = 3.0
    silence_s: float = 15.0
    total_s: float = 120.0
    n_retries: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        try:
            parts = urlsplit(self.url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            httpx.URL(self.url)
        except (ValueError, httpx.InvalidURL):
            is_http = False
        if not is_http:
            message = f"{printable(self.url)} is no HTTP address, such as http://127.0.0.1:8000/v1"
            raise AgentSetupError(message)
        times = (self.connect_s, self.silence_s, self.total_s)
        if not all(0 < one < math.inf for one in times) or self.n_retries < 0:
            raise AgentSetupError("an endpoint needs times above 0 and 0 or more retries")
        if self.api_key is not None and not self.api_key.isascii():
            raise AgentSetupError("an API key holds ASCII characters only")


class Endpoint:
    """A client of one endpoint, shared by all sessions.

    Args:
        config: where and how long.
        sleep: waits before a retry.
        clock: monotonic seconds, of the event loop's kind.
    """

    def __init__(
        self,
        config: EndpointConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._sleep = sleep
        self._clock = clock
        # A compressed stream would be held back by its compressor.
        headers = {"accept-encoding": "identity"}
        if config.api_key:
            headers["authorization"] = f"Bearer {config.api_key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(config.silence_s, connect=config.connect_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
        )

    async def close(self) -> None:
        """Close idle connections. Nothing is being asked any more."""
        await self._client.aclose()

    @asynccontextmanager
    async def post(
        self,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
        files: Mapping[str, tuple[str, bytes, str]] | None = None,
    ) -> AsyncIterator[Answer]:
        """The answer to a POST, once its status says that there is one.

        Args:
            path: behind the URL.
            body: as JSON; or else
            form: fields, with
            files: name, content and type by field.

        Raises:
            StageError: no answer, or none that helps.
        """
        url = f"{self.config.url.rstrip('/')}/{path}"
        request = self._client.build_request("POST", url, json=body, data=form, files=files)
        deadline_s = self._clock() + self.config.total_s
        try:
            async with asyncio.timeout(self.config.total_s):
                response = await self._open(request)
        except TimeoutError:
            raise self._too_slow(self.config.total_s) from None
        answer = Answer(response, deadline_s, self._clock)
        try:
            yield answer
        finally:
            await answer.close()

    async def _open(self, request: httpx.Request) -> httpx.Response:
        n_tried = 0
        while True:
            wait_s = FIRST_WAIT_S * 2**n_tried
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                fault = StageError("endpoint_unreachable", f"{self._place}: {_words(error)}")
            except httpx.TimeoutException:
                raise self._too_slow(self.config.silence_s) from None
            except httpx.HTTPError as error:
                raise StageError("endpoint_error", f"{self._place}: {_words(error)}") from None
            else:
                if response.status_code == httpx.codes.OK:
                    return response
                fault = await self._refusal(response)
                if response.status_code not in RETRIED:
                    raise fault
                wait_s = max(wait_s, fault.retry_after_s or 0.0)
            if n_tried == self.config.n_retries or wait_s > LONGEST_WAIT_S:
                raise fault
            await self._sleep(wait_s)
            n_tried += 1

    async def _refusal(self, response: httpx.Response) -> StageError:
        status = response.status_code
        said = await _first_words(response)
        message = f"{self._place}: HTTP {status}{said and f', {printable(said)}'}"
        if status in OVERLOADED:
            return StageError("endpoint_overloaded", message, _retry_after_s(response))
        code = "endpoint_error" if status >= 500 or status < 400 else "endpoint_refused"
        return StageError(code, message)

    @property
    def _place(self) -> str:
        """Host and port; the rest of a URL may hold a secret."""
        return urlsplit(self.config.url).netloc.rpartition("@")[2]

    def _too_slow(self, seconds: float) -> StageError:
        message = f"{self._place}: no answer within {seconds:g} s"
        return StageError("endpoint_timeout", message, 1.0)


class Answer:
    """The body of an answer, read piece by piece.

    Args:
        response: open.
        deadline_s: when all of it must have come.
        clock: of the deadline.
    """

    def __init__(
        self, response: httpx.Response, deadline_s: float, clock: Callable[[], float]
    ) -> None:
        self._response = response
        self._pieces = response.aiter_bytes()
        self._deadline_s = deadline_s
        self._clock = clock
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._is_ended = False

    async def close(self) -> None:
        """Read no more of it."""
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()
        await self._response.aclose()

    @property
    def is_event_stream(self) -> bool:
        """Whether server-sent events come, and not one JSON value."""
        kind: str = self._response.headers.get("content-type", "")
        return kind.partition(";")[0].strip().lower() == "text/event-stream"

    async def value(self) -> dict[str, Any]:
        """The JSON object that it is. Raises: `StageError`."""
        body = b""
        while (piece := await self._next_piece()) is not None:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise bad_response(f"more than {MAX_BODY_BYTES} bytes")
        return parse_object(body)

    async def next_event(self) -> dict[str, Any] | None:
        """The JSON object of the next server-sent event; None at the end, and at `[DONE]`.

        Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.

        Raises:
            StageError: it broke off, took too long, or is no JSON object.
        """
        content: list[str] = []
        while (line := await self._next_line()) is not None:
            if line.startswith("data:"):
                content.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and content:
                break
        text = "\n".join(content)
        if not content or text.strip() == "[DONE]":
            return None
        return parse_object(text)

    async def _next_line(self) -> str | None:
        while not self._lines and not self._is_ended:
            piece = await self._next_piece()
            if piece is None:
                # A last line without its end is taken too: not every server ends as it should.
                self._is_ended = True
                self._lines.append(self._rest)
            else:
                *whole, self._rest = (self._rest + piece).split(b"\n")
                self._lines.extend(whole)
            if len(self._rest) > MAX_LINE_BYTES:
                raise bad_response(f"a line of more than {MAX_LINE_BYTES} bytes")
        if not self._lines:
            return None
        try:
            return self._lines.popleft().removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise bad_response("not UTF-8") from None

    async def _next_piece(self) -> bytes | None:
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - self._clock())):
                return await anext(self._pieces, None)
        except (TimeoutError, httpx.TimeoutException):
            raise StageError("endpoint_timeout", "the answer stopped midway", 1.0) from None
        except httpx.HTTPError as error:
            raise bad_response(f"the answer broke off ({_words(error)})") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object, U+FFFD for each lone half of a UTF-16 pair in it.

    Raises: `StageError`, also for the endpoint's own report of an error.
    """
    try:
        value = json.loads(text)
        if HALF_A_PAIR.search(text if isinstance(text, str) else text.decode(errors="replace")):
            # A lone half could not be sent on to any client.
            shown = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
            value = json.loads(shown.decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        raise bad_response(f"not JSON: {printable(text)}") from None
    if not isinstance(value, dict):
        raise bad_response(f"not a JSON object: {printable(text)}")
    if error := value.get("error"):
        said = error.get("message", error) if isinstance(error, dict) else error
        raise StageError("endpoint_error", f"the endpoint reports: {printable(said)}")
    return value


def bad_response(what: str) -> StageError:
    """The fault of an answer that is not what the API promises."""
    return StageError("bad_response", f"the endpoint's answer cannot be used: {what}")


async def _first_words(response: httpx.Response) -> str:
    """What an endpoint says about its refusal; empty if nothing that can be read."""
    said = b""
    try:
        async for piece in response.aiter_bytes():
            said += piece
            if len(said) > MAX_SHOWN_BYTES:
                break
        value = json.loads(said)
    except (httpx.HTTPError, ValueError, RecursionError):
        return said.decode(errors="replace").strip()
    finally:
        await response.aclose()
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _retry_after_s(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers.get("retry-after", "1"))
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds < math.inf else 1.0


def _words(error: httpx.HTTPError) -> str:
    return printable(str(error) or type(error).__name__)

"""Stands before every route: HTTP and sockets, and such as are added later. Event loop only.

It asks, in this order: does the page that the request comes from belong here, is there a key, is it
ours, and is there room for one more of this caller. Refusals of sockets come before the upgrade.
What it found out is told to the routes as a `Caller`; the key itself goes no further.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from realtime.access.addresses import address_of
from realtime.access.caller import Caller, put_caller
from realtime.access.client_secrets import ClientSecrets
from realtime.access.keys import SECRET_PREFIX
from realtime.access.origins import Origins
from realtime.access.refusal import refusal
from realtime.errors import printable
from realtime.gateway import Gateway
from realtime.limits import PlaceCount, WrongTries

KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""Before the key, where a browser offers it: a page cannot set headers of a socket."""
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz"})
KEY_PARAMETERS: Final = frozenset(
    {"key", "api_key", "api-key", "apikey", "token", "access_token", "authorization"}
)

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request goes no further.

    Args:
        status: of HTTP.
        code: stable name for programs.
        message: what is wrong and what to do.
        headers: of the answer.
    """

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.code = code
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response: Response = refusal(status, code, message, headers=named)


class Guard:
    """ASGI middleware around the whole app.

    Args:
        app: behind it.
        gateway: whose settings, clock and counts it uses.
        secrets: that open sockets beside the keys.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, secrets: ClientSecrets) -> None:
        access = gateway.config.access
        self._app = app
        self._gateway = gateway
        self._access = access
        self._secrets = secrets
        self._open_paths = OPEN_PATHS | _page_paths(gateway)
        trusts_names = len(access.keys) > 0 or access.is_insecure
        self._origins = Origins(access.origins, trusts_names=trusts_names)
        self._wrong_keys = WrongTries(
            rate_per_s=access.wrong_keys_per_minute / 60, burst=access.wrong_key_burst
        )
        self._of_address = PlaceCount(access.max_open_per_address)
        self._of_key = PlaceCount(access.max_open_per_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        address = address_of(scope, trusts_proxy=self._access.trusts_proxy)
        try:
            caller = self._caller(scope, address)
            with self._place(caller, is_counted=not self._is_open(scope)):
                await self._app(_without_key(scope, caller), receive, send)
        except RefusedError as error:
            self._gateway.metrics.refusals.labels(error.code).inc()
            logger.info("%s: refused %s, %s", address or "-", scope["type"], error.code)
            await error.response(scope, receive, send)

    def _caller(self, scope: Scope, address: str) -> Caller:
        """Who asks. Raises: `RefusedError`."""
        headers = Headers(scope=scope)
        self._check_origin(headers)
        if self._is_open(scope):
            return Caller(address=address)
        self._check_url(scope)
        key = _given_key(scope, headers)
        # A secret opens sockets and nothing else: it must not be able to make more of its kind.
        secret = self._secrets.find(key) if key and scope["type"] == "websocket" else None
        if secret is not None:
            return Caller(address=address, key_id=secret.key_id, session=secret.session)
        if not self._access.keys:
            return Caller(address=address)
        if key is None:
            message = "this server wants an API key: Authorization: Bearer <key>"
            raise _unauthorized("missing_api_key", message)
        if key.startswith(SECRET_PREFIX.encode()):
            # No try at a key: pages that reconnect would lock out all of their address.
            message = (
                "this client secret has expired, is unknown, or was used for more than sockets"
            )
            raise _unauthorized("invalid_api_key", message)
        return Caller(address=address, key_id=self._key_id(key, address))

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or self._origins.allow(origin, headers.get("host", "")):
            return
        message = f"pages of {printable(origin)} may not use this server; it can be told to with"
        raise RefusedError(403, "origin_not_allowed", f"{message} --origin")

    def _check_url(self, scope: Scope) -> None:
        query = scope["query_string"].decode("latin-1")
        names = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}
        if names.isdisjoint(KEY_PARAMETERS):
            return
        # The server below logs paths with their query, and has this very mapping.
        scope["query_string"] = b""
        message = "keys are not taken from the URL, which gets into logs and histories; send it as"
        raise RefusedError(400, "key_in_url", f"{message} Authorization: Bearer <key>")

    def _key_id(self, key: bytes, address: str) -> str:
        """The name of a key that is ours. Raises: `RefusedError`."""
        now_s = self._gateway.clock()
        wait_s = self._wrong_keys.wait_s(address, now_s)
        if wait_s > 0:
            message = "too many wrong API keys from this address"
            raise RefusedError(429, "too_many_wrong_keys", message, Retry_After=_seconds(wait_s))
        key_id = self._access.keys.id_of(key)
        if key_id is None:
            self._wrong_keys.add(address, now_s)
            raise _unauthorized("invalid_api_key", "this API key is not accepted here")
        return key_id

    @contextmanager
    def _place(self, caller: Caller, *, is_counted: bool) -> Iterator[None]:
        """Hold a place for the caller. Raises: `RefusedError`."""
        if not is_counted:
            yield
            return
        key_id = caller.key_id or ""
        if not self._of_address.enter(caller.address):
            raise self._crowded("address", self._access.max_open_per_address)
        try:
            if key_id and not self._of_key.enter(key_id):
                raise self._crowded("API key", self._access.max_open_per_key)
            try:
                yield
            finally:
                if key_id:
                    self._of_key.leave(key_id)
        finally:
            self._of_address.leave(caller.address)

    def _crowded(self, what: str, n_most: int | None) -> RefusedError:
        wait_s = _seconds(self._gateway.config.retry_after_s)
        message = f"at most {n_most} requests and sockets of one {what} at once"
        return RefusedError(429, "too_many_open", message, Retry_After=wait_s)

    def _is_open(self, scope: Scope) -> bool:
        """Whether a request needs no key: signs of life, and the page, which holds no secrets."""
        return scope["type"] == "http" and scope["path"] in self._open_paths


def _page_paths(gateway: Gateway) -> frozenset[str]:
    """Paths of the page's own files. By name: what else may lie behind a route is not open."""
    folder = gateway.config.web_demo
    files = (path for path in folder.rglob("*") if path.is_file())
    return frozenset(f"/{path.relative_to(folder).as_posix()}" for path in files)


def _given_key(scope: Scope, headers: Headers) -> bytes | None:
    """The key of a request, wherever it may be; None: there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip().encode("latin-1")
    offers = (one for one in scope.get("subprotocols", ()) if one.startswith(KEY_SUBPROTOCOL))
    offer = next(offers, None)
    return None if offer is None else offer.removeprefix(KEY_SUBPROTOCOL).encode("latin-1")


def _without_key(scope: Scope, caller: Caller) -> Scope:
    """The scope for the routes: what was given as a key is not there any more."""
    secret = (b"authorization", b"sec-websocket-protocol")
    behind = dict(scope)
    behind["headers"] = [pair for pair in scope["headers"] if pair[0] not in secret]
    if "subprotocols" in scope:
        offers = scope["subprotocols"]
        behind["subprotocols"] = [one for one in offers if not one.startswith(KEY_SUBPROTOCOL)]
    put_caller(behind, caller)
    return behind


def _unauthorized(code: str, message: str) -> RefusedError:
    return RefusedError(401, code, message, WWW_Authenticate="Bearer")


def _seconds(wait_s: float) -> str:
    return str(math.ceil(wait_s))

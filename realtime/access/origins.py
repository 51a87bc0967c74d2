"""Which web pages may use this server from a browser. Pure.

A browser tells with `Origin` from which page a request comes, and a page cannot change that. Other
programs send none: of them, keys are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from realtime.access.addresses import is_address
from realtime.errors import ConfigError

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_Place = tuple[str, int | None]


class Origins:
    """The pages that are let in.

    Args:
        allowed: origins of other sites, as `checked_origin` gives them.
        trusts_names: a page of any name that leads here counts as our own. Where nothing but the
            address protects a server, it must not: a foreign page can have its own name lead here
            after it was loaded (DNS rebinding).
    """

    def __init__(self, allowed: Sequence[str], *, trusts_names: bool) -> None:
        self._allowed = frozenset(allowed)
        self._trusts_names = trusts_names

    def allow(self, origin: str, host: str) -> bool:
        """Whether a request with these headers may go on."""
        origin = origin.lower()
        if origin in self._allowed:
            return True
        scheme = origin.partition("://")[0]
        page, server = _place(origin), _place(f"{scheme}://{host.lower()}")
        if page is None or page != server:
            return False
        return self._trusts_names or page[0] == "localhost" or is_address(page[0])


def checked_origin(text: str) -> str:
    """`text` as browsers write it, if it is an origin. Raises: `ConfigError`."""
    origin = text.strip().lower().rstrip("/")
    place = _place(origin)
    scheme, _, rest = origin.partition("://")
    if place is None or not scheme or not rest or set("/?#@*") & set(rest):
        raise ConfigError(f"origin {text!r}: give scheme and host, like https://app.example")
    default = _DEFAULT_PORTS.get(scheme)
    return origin.removesuffix(f":{default}")


def _place(origin: str) -> _Place | None:
    """Host and port of an origin; None: it has none (`null`, of pages without one)."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or _DEFAULT_PORTS.get(parts.scheme)) if host else None

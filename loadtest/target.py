"""The server that is loaded: where it is, and the key that it wants."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server.

    Args:
        url: `host:port`, `http://` or `ws://` and so on.
        api_key: that it wants; None: none. Never written anywhere.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)

"""Who asks, as the guard has found out. A value on the ASGI scope; event loop thread."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

_SCOPE_NAME: Final = "parley.caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Args:
        address: of the client, or of its network; see `realtime.access.addresses`.
        key_id: name of the key it gave, never the key; None: no keys are set.
        session: settings of the client secret that it gave, for the session to begin with.
    """

    address: str = ""
    key_id: str | None = None
    session: Mapping[str, Any] | None = None


def put_caller(scope: MutableMapping[str, Any], caller: Caller) -> None:
    """Tell the routes behind the guard who asks."""
    scope[_SCOPE_NAME] = caller


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Who asks, for a route."""
    caller = scope[_SCOPE_NAME]
    assert isinstance(caller, Caller), "the guard stands before every route"
    return caller

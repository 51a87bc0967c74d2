"""Short-lived keys for browsers, each with the settings of the session that it opens. Event loop.

A page must not hold a key of the operator's: its server asks for a secret and hands it over. It
opens sockets until it expires, as often as it is used.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from realtime.access.keys import SECRET_PREFIX

N_RANDOM_BYTES: Final = 32


class TooManySecretsError(Exception):
    """As many are alive as may be.

    Args:
        retry_after_s: until the first of them expires, in whole seconds.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many client secrets are alive; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecret:
    """What a secret stands for.

    Args:
        session: settings for the session to begin with.
        key_id: of the key that asked for it, whose limits it shares; None: no keys are set.
        expires_s: on the clock of its store.
    """

    session: Mapping[str, Any]
    key_id: str | None
    expires_s: float


class ClientSecrets:
    """The secrets that are alive. Values are not kept, only their digests.

    Args:
        clock: monotonic seconds.
        max_alive: more are refused.
    """

    def __init__(self, clock: Callable[[], float], max_alive: int) -> None:
        self._clock = clock
        self._max_alive = max_alive
        self._alive: dict[bytes, ClientSecret] = {}

    def __len__(self) -> int:
        """How many are kept; expired ones may be among them until a place is needed."""
        return len(self._alive)

    def make(self, session: Mapping[str, Any], *, lifetime_s: float, key_id: str | None) -> str:
        """A new secret's value. Raises: `TooManySecretsError`."""
        now_s = self._clock()
        if len(self._alive) >= self._max_alive:
            self._forget_expired(now_s)
        if len(self._alive) >= self._max_alive:
            first_s = min(one.expires_s for one in self._alive.values())
            raise TooManySecretsError(math.ceil(first_s - now_s))
        value = SECRET_PREFIX + secrets.token_urlsafe(N_RANDOM_BYTES)
        self._alive[_digest(value.encode())] = ClientSecret(
            session=session, key_id=key_id, expires_s=now_s + lifetime_s
        )
        return value

    def find(self, value: bytes) -> ClientSecret | None:
        """What `value` stands for; None: nothing, or no more."""
        # The table is searched by digest: how long that takes tells nothing of other secrets.
        secret = self._alive.get(_digest(value))
        return secret if secret is not None and self._clock() < secret.expires_s else None

    def _forget_expired(self, now_s: float) -> None:
        self._alive = {d: one for d, one in self._alive.items() if one.expires_s > now_s}


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()

"""Settings of who may come in, checked when made. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from realtime.access.keys import KeyRing
from realtime.access.tls import TlsFiles
from realtime.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Who may come in, and how often.

    Args:
        keys: that open the server; without any, everybody may come in who can reach it.
        is_insecure: without keys, listen to more than this machine all the same.
        origins: of web pages elsewhere that may use the server, see `checked_origin`.
        trusts_proxy: a proxy stands before the server and says who asks.
        tls: certificate and key; None: no TLS.
        max_open_per_key: requests and sockets of one key at once; None: no bound of its own.
        max_open_per_address: the same for an address.
        wrong_keys_per_minute: of one address, in the long run; more are not looked at.
        wrong_key_burst: that may come at once.
        max_client_secrets: that may be alive at once.
    """

    keys: KeyRing = field(default_factory=KeyRing)
    is_insecure: bool = False
    origins: tuple[str, ...] = ()
    trusts_proxy: bool = False
    tls: TlsFiles | None = None
    max_open_per_key: int | None = None
    max_open_per_address: int | None = None
    wrong_keys_per_minute: float = 10.0
    wrong_key_burst: int = 20
    max_client_secrets: int = 1000

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("max_open_per_key", "max_open_per_address"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, must be 1 or more")
        if self.wrong_key_burst < 1 or self.max_client_secrets < 1:
            raise ConfigError("wrong_key_burst and max_client_secrets must be 1 or more")
        if not 0 < self.wrong_keys_per_minute < math.inf:
            raise ConfigError("wrong_keys_per_minute must be above 0 and finite")

"""Which address a request comes from, for limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

IPV6_PREFIX: Final = 64
"""Whoever has one IPv6 address has the rest of such a network too (RFC 6177)."""


def address_of(scope: Mapping[str, Any], *, trusts_proxy: bool) -> str:
    """The client's address (its network of IPv6); empty if it has none.

    Args:
        scope: of ASGI.
        trusts_proxy: take the last entry of `X-Forwarded-For`, which the proxy before this server
            has added. Entries before it are the client's own word.
    """
    peer = scope.get("client")
    named = peer[0] if peer else ""
    if trusts_proxy:
        given = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        last = given[-1].decode("latin-1").rsplit(",", 1)[-1].strip() if given else ""
        named = last or named
    return _network_of(named) or (peer[0] if peer else "")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    address = _parse(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an address as numbers, not a name."""
    return _parse(host) is not None


def _network_of(text: str) -> str:
    address = _parse(text)
    if address is None:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return str(IPv6Network((address, IPV6_PREFIX), strict=False))
    return str(address)


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return None

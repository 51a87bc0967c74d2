"""Which address counts, with and without a proxy."""

import pytest

from realtime.access.addresses import address_of, is_address, is_loopback


def scope(peer, *forwarded):
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return {"client": (peer, 1234) if peer else None, "headers": headers}


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, ""),
    ],
)
def test_the_peer_counts_and_of_ipv6_its_network(peer, address):
    assert address_of(scope(peer), trusts_proxy=False) == address


def test_a_client_cannot_choose_its_address():
    assert address_of(scope("192.0.2.7", "203.0.113.1"), trusts_proxy=False) == "192.0.2.7"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (["203.0.113.1"], "203.0.113.1"),
        (["198.51.100.9, 203.0.113.1"], "203.0.113.1"),
        (["198.51.100.9", "203.0.113.1"], "203.0.113.1"),
        (["203.0.113.1, nonsense"], "10.0.0.1"),
        ([], "10.0.0.1"),
        ([""], "10.0.0.1"),
    ],
)
def test_of_a_trusted_proxy_the_last_word_counts(forwarded, address):
    assert address_of(scope("10.0.0.1", *forwarded), trusts_proxy=True) == address


def test_loopback_is_known_by_name_and_number():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.7", "example.org", "")))
    assert is_address("192.0.2.7")
    assert not is_address("localhost")

"""Pages that may use the server, and pages that may not."""

import pytest

from realtime.access.origins import Origins, checked_origin
from realtime.errors import ConfigError

HERE = "127.0.0.1:8765"


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("http://127.0.0.1:8765", HERE, True),
        ("http://localhost:8765", "localhost:8765", True),
        ("http://[::1]:8765", "[::1]:8765", True),
        ("https://talk.example", "talk.example", True),
        ("https://talk.example", "talk.example:443", True),
        ("HTTPS://Talk.Example", "talk.example", True),
        ("http://127.0.0.1:9000", HERE, False),
        ("http://localhost:8765", HERE, False),
        ("https://evil.example", HERE, False),
        ("http://127.0.0.1:8765.evil.example", HERE, False),
        ("null", HERE, False),
        ("null", "null", False),
        ("", HERE, False),
        ("http://127.0.0.1:8765", "", False),
        ("http://[", HERE, False),
    ],
)
def test_our_own_page_may_and_others_may_not(origin, host, may):
    assert Origins((), trusts_names=True).allow(origin, host) is may


def test_listed_pages_may():
    origins = Origins([checked_origin("https://app.example:443/")], trusts_names=False)
    assert origins.allow("https://app.example", HERE)
    assert not origins.allow("http://app.example", HERE)
    assert not origins.allow("https://app.example:8443", HERE)
    assert not origins.allow("https://sub.app.example", HERE)


def test_where_only_the_address_protects_a_foreign_name_that_leads_here_is_not_ours():
    """DNS rebinding: the page's own name is made to lead to the reader's machine."""
    origins = Origins((), trusts_names=False)
    assert not origins.allow("http://evil.example:8765", "evil.example:8765")
    assert origins.allow("http://localhost:8765", "localhost:8765")
    assert origins.allow("http://127.0.0.1:8765", HERE)


@pytest.mark.parametrize(
    "text", ["null", "*", "app.example", "https://", "https://a/b", "https://u@h", "http://x:99999"]
)
def test_what_is_no_origin_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="give scheme and host"):
        checked_origin(text)

"""Short-lived keys, by a clock by hand."""

import pytest

from realtime.access.client_secrets import ClientSecrets, TooManySecretsError
from tests.realtime.talk_harness import ManualClock

SESSION = {"type": "realtime", "instructions": "Be brief."}


def test_a_secret_is_good_until_it_expires():
    clock = ManualClock()
    secrets = ClientSecrets(clock, max_alive=10)
    value = secrets.make(SESSION, lifetime_s=60.0, key_id="key_1")
    assert value.startswith("ek_")
    clock.now_s += 59.9
    found = secrets.find(value.encode())
    assert (found.session, found.key_id) == (SESSION, "key_1")
    assert secrets.find(value.encode()) is found, "it may be used again"
    clock.now_s += 0.1
    assert secrets.find(value.encode()) is None


def test_no_two_are_alike_and_nothing_else_is_one():
    secrets = ClientSecrets(ManualClock(), max_alive=100)
    values = {secrets.make({}, lifetime_s=60.0, key_id=None) for _ in range(50)}
    assert len(values) == 50
    assert min(map(len, values)) > 40
    assert secrets.find(b"ek_") is None
    assert secrets.find(next(iter(values))[:-1].encode()) is None
    assert not any(value in repr(vars(secrets)) for value in values), "only digests are kept"


def test_their_number_is_bounded_and_expired_ones_give_room():
    clock = ManualClock()
    secrets = ClientSecrets(clock, max_alive=2)
    secrets.make({}, lifetime_s=30.0, key_id=None)
    last = secrets.make({}, lifetime_s=60.0, key_id=None)
    clock.now_s += 9.5
    with pytest.raises(TooManySecretsError) as caught:
        secrets.make({}, lifetime_s=60.0, key_id=None)
    assert caught.value.retry_after_s == 21
    clock.now_s += 21
    secrets.make({}, lifetime_s=60.0, key_id=None)
    assert len(secrets) == 2
    assert secrets.find(last.encode()) is not None

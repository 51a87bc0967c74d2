"""Keys: where they come from, what can be one, and that none is told on."""

import logging

import pytest

from realtime.access.keys import KeyRing, keys_in, read_key_file
from realtime.errors import ConfigError

KEY = "k3y-" + "a" * 28
OTHER = "0th3r-" + "b" * 26


def test_a_key_of_ours_has_a_name_that_does_not_show_it():
    ring = KeyRing([KEY, OTHER])
    names = {ring.id_of(KEY.encode()), ring.id_of(OTHER.encode())}
    assert len(names) == 2
    assert None not in names
    assert not any(KEY[:8] in name for name in names)
    assert repr(ring) == "<2 keys>"


@pytest.mark.parametrize("wrong", [b"", KEY[:-1].encode(), KEY.encode() + b"a", b"\xff" * 40])
def test_what_is_not_ours_has_none(wrong):
    assert KeyRing([KEY]).id_of(wrong) is None


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(one: bytes, two: bytes) -> bool:
        compared.append((len(one), len(two)))
        return one == two

    ring = KeyRing([KEY, OTHER])
    monkeypatch.setattr("realtime.access.keys.hmac.compare_digest", compare)
    for key in (KEY, OTHER, "short", "long" * 100):
        assert (ring.id_of(key.encode()) is None) == (key not in (KEY, OTHER))
    assert compared == [(32, 32)] * 8, "no early end, and no length of a key to be measured"


def test_a_file_has_one_key_a_line_and_comments(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of the house\n\n{KEY}  # the phone\n  {OTHER}\n#{'c' * 30}\n")
    path.chmod(0o600)
    assert read_key_file(path) == [KEY, OTHER]


def test_a_hash_inside_a_key_belongs_to_it(tmp_path):
    path = tmp_path / "keys"
    path.write_text("a#" * 10)
    assert read_key_file(path) == ["a#" * 10]


def test_a_file_that_all_can_read_is_warned_of(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        read_key_file(path)
    assert not caplog.records
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        read_key_file(path)
    assert "chmod 600" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "holds no API key"),
        (f"{KEY}\nshort", "line 2: a key has 16 to 256 characters, not 5"),
        ("x" * 257, "line 1: a key has 16 to 256 characters, not 257"),
        ("sixteen symbols = here", "line 1: browsers can send"),
        ("ek_" + "d" * 30, "line 1: ek_ is how short-lived keys begin"),
    ],
)
def test_a_bad_line_is_named_and_not_repeated(tmp_path, text, said):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_key_file(path)
    assert not any(word in str(caught.value) for word in text.split() if len(word) > 5)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        read_key_file(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary: not text"):
        read_key_file(tmp_path / "binary")


def test_the_environment_separates_by_commas_or_space():
    assert keys_in(f"{KEY},{OTHER}\n", "KEYS") == [KEY, OTHER]
    assert keys_in("  ", "KEYS") == []
    with pytest.raises(ConfigError, match="KEYS, key 2: a key has"):
        keys_in(f"{KEY} x", "KEYS")

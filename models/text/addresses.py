"""Web and mail addresses: what a listener hears of them. Pure, any thread.

Of a web address its host, which tells whose page it is; the path helps nobody who listens.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NAMELESS: Final = "link"
"""For an address without a host."""

_EMAIL: Final = re.compile(
    r"(?<![\w.+%-])([\w.+%-]{1,64})@([A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5})(?![\w@-])"
)
_TOP_LEVELS: Final = (
    r"com|org|net|edu|gov|io|dev|ai|app|co|info|uk|us|de|fr|eu|ca|au|jp|in|me|tv|biz|tech|xyz"
)
_URL: Final = re.compile(
    r"(?<![A-Za-z0-9@.-])(?:(?:https?|ftp|wss?)://(?:[^\s/@]{1,80}@)?(?:www\.)?([\w.-]{0,120})"
    r"|www\.([\w.-]{1,120})"
    rf"|((?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{_TOP_LEVELS})(?![\w-])(?!\.\w)))"
    r"(:\d{1,5})?([/?#][^\s<>\"'\])}]*)?",
    re.IGNORECASE,
)
_MARKS: Final = ".,?!;:"


class Address(NamedTuple):
    """A web address at `[start, end)`, without the mark of the sentence that ends with it."""

    host: str
    start: int
    end: int


def web_addresses(text: str, start: int, end: int) -> list[Address]:
    """The web addresses in `text[start:end]`, in order."""
    if text.find(".", start, end) < 0 and text.find("://", start, end) < 0:
        return []
    return [_address(found) for found in _URL.finditer(text, start, end)]


def speak_addresses(text: str) -> str:
    """Web and mail addresses as English words: the host only, `.` as dot, `@` as at."""
    if "@" in text:
        text = _EMAIL.sub(lambda found: f"{_dotted(found[1])} at {_dotted(found[2])}", text)
    spoken: list[str] = []
    place = 0
    for address in web_addresses(text, 0, len(text)):
        gap = "" if text[address.end : address.end + 1] in tuple(_MARKS) else " "
        spoken.append(f"{text[place : address.start]} {_dotted(address.host)}{gap}")
        place = address.end
    return "".join([*spoken, text[place:]])


def _address(found: re.Match[str]) -> Address:
    whole = found[0]
    end = found.start() + len(whole.rstrip(_MARKS))
    host = (found[1] or found[2] or found[3] or "").replace("_", "-").strip(".-")
    return Address(host or NAMELESS, found.start(), end)


def _dotted(name: str) -> str:
    """`node-red.io` -> `node red dot I O`: short endings are letters, others are words."""
    labels = [label for label in re.split(r"\.", name) if label]
    words = [re.sub(r"[^A-Za-z0-9]+", " ", label).strip() for label in labels]
    if len(words) > 1 and len(words[-1]) == 2:
        words[-1] = " ".join(words[-1].upper())
    return " dot ".join(word for word in words if word)

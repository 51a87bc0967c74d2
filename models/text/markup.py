"""Markdown, links and addresses: what a reader sees becomes what a listener hears.

Pure, any thread. Every pattern is anchored or bounded, so that hostile text stays linear.
"""

from __future__ import annotations

import re
from typing import Final

_ITEM: Final = "\0"
"""Marks a list item until lines are joined; checked text holds no NUL of its own."""
_FENCE: Final = re.compile(r"^[ \t]{0,8}(?:```|~~~)[^\n]{0,80}$", re.MULTILINE)
_RULE: Final = re.compile(r"^[ \t]{0,8}(?:[-*_=][ \t]?){3,80}$", re.MULTILINE)
_HEADING: Final = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]([^\n]*)$", re.MULTILINE)
_BULLET: Final = re.compile(r"^[ \t]{0,16}(?:[-*+•]|>{1,4})[ \t]+(?=\S)", re.MULTILINE)
_LINK: Final = re.compile(
    r"!?\[([^\]\[\n]{1,300})\]\((?:[^()\s]{0,500})(?:\s\"[^\"\n]{0,200}\")?\)"
)
_EMPHASIS: Final = re.compile(r"\*{1,3}(?=\S)|(?<=\S)\*{1,3}|~~|`{1,3}")
_UNDERSCORES: Final = re.compile(r"_+")

_EMAIL: Final = re.compile(
    r"(?<![\w.+%-])([\w.+%-]{1,64})@([A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5})(?![\w@-])"
)
_TOP_LEVELS: Final = (
    r"com|org|net|edu|gov|io|dev|ai|app|co|info|uk|us|de|fr|eu|ca|au|jp|in|me|tv|biz|tech|xyz"
)
_URL: Final = re.compile(
    r"(?<![A-Za-z0-9@.-])(?:(?:https?|ftp|wss?)://(?:[^\s/@]{1,80}@)?(?:www\.)?([A-Za-z0-9.-]{1,120})"
    r"|www\.([A-Za-z0-9.-]{1,120})"
    rf"|((?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{_TOP_LEVELS})(?![\w-])(?!\.\w)))"
    r"(:\d{1,5})?([/?#][^\s<>\"'\])}]{0,2000})?",
    re.IGNORECASE,
)


def strip_markup(text: str) -> str:
    """`text` without markdown marks; list items, headings and paragraphs end like sentences."""
    if "\n" in text or text[:1] in "#-*+>•":
        text = _FENCE.sub("", text)
        text = _RULE.sub("", text)
        text = _HEADING.sub(r"\n\1\n\n", text)
        text = _BULLET.sub(_ITEM, text)
        text = _join_lines(text)
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    text = _EMPHASIS.sub(_emphasis, text) if any(one in text for one in "*~`") else text
    return _UNDERSCORES.sub(" ", text)


def speak_addresses(text: str) -> str:
    """Web and mail addresses as words: the host only, `.` as dot, `@` as at."""
    if "@" in text:
        text = _EMAIL.sub(lambda found: f"{_dotted(found[1])} at {_dotted(found[2])}", text)
    return _URL.sub(_host, text) if "." in text or "://" in text else text


def _emphasis(found: re.Match[str]) -> str:
    """Nothing for a markdown mark; a single star between figures means multiplication."""
    before = found.string[: found.start()][-1:]
    after = found.string[found.end() : found.end() + 1]
    return " times " if found[0] == "*" and before.isdigit() and after.isdigit() else ""


def _join_lines(text: str) -> str:
    """Lines as running text: wrapped lines by a space, items and paragraphs by a full stop."""
    joined: list[str] = []
    was_blank = False
    for line in text.split("\n"):
        is_item = line.startswith(_ITEM)
        line = line.replace(_ITEM, "").strip()
        if not line:
            was_blank = True
            continue
        if joined and (is_item or was_blank) and joined[-1][-1] not in ".?!:;,":
            joined[-1] += "."
        joined.append(line)
        was_blank = False
    return " ".join(joined)


def _host(found: re.Match[str]) -> str:
    """The spoken host of an address, with the sentence mark that its pattern may have eaten."""
    host = found[1] or found[2] or found[3]
    rest = found[5] or ""
    tail = (rest or host)[-1:]
    ending = tail if tail in ".,?!;:" else ""
    if not rest:
        host = host.rstrip(".")
    return f" {_dotted(host.strip('.-')) or 'link'}{ending} "


def _dotted(name: str) -> str:
    """`node-red.io` -> `node red dot I O`: short endings are letters, others are words."""
    labels = [label for label in re.split(r"\.", name) if label]
    words = [re.sub(r"[^A-Za-z0-9]+", " ", label).strip() for label in labels]
    if len(words) > 1 and len(words[-1]) == 2:
        words[-1] = " ".join(words[-1].upper())
    return " dot ".join(word for word in words if word)

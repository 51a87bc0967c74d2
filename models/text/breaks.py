"""Tags in text: `<break time="500ms"/>` is a pause, other tags of HTML and SSML are not read.

Pure, any thread. What stands between angle brackets and is no known tag (`<name>`) is text; a model
may know tags of its own (`<laugh>`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from models.text.tables import word_set

LONGEST_PAUSE_S: Final = 10.0
"""Longer pauses are cut to this: a request must not buy minutes of silence."""
DEFAULT_PAUSE_S: Final = 0.5
"""Of a break that states no time that can be read. Source: SSML 1.1, 3.2.3 has it as medium."""

_LINES: Final = word_set("br p div li ul ol dl dt dd tr table h1 h2 h3 h4 h5 h6 hr blockquote pre")
"""What follows one of these tags stands on a line of its own."""
_INLINE: Final = word_set(
    """
    a abbr article aside audio b big body button center cite code del details em figcaption figure
    font footer form head header html i iframe img input ins kbd label link main mark meta nav
    option q samp script section select small source span strike strong style sub summary sup svg
    s tbody td template textarea tfoot th thead time title tt u var video wbr
    break desc emphasis lang lexicon metadata paragraph phoneme prosody say-as sentence speak token
    voice w
    """
)
_NAMES: Final = _LINES | _INLINE
_TAG: Final = re.compile(
    r"</?([A-Za-z][A-Za-z0-9-]{0,15})(?:[\s/][^<>\n]{0,240})?>|<!--[^<>\n]{0,240}>"
)
_OPEN_TAG: Final = re.compile(
    r"<(?:/?(?:[A-Za-z][A-Za-z0-9-]{0,15}(?:[\s/][^<>\n]{0,240})?)?|!(?:-(?:-[^<>\n]{0,240})?)?)"
)
_NAME: Final = re.compile(r"</?([A-Za-z0-9-]*)")
_TIME: Final = re.compile(
    r"""\stime\s{0,4}=\s{0,4}(["']?)\s{0,4}(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s{0,4}(ms|s)\s{0,4}\1""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Silence between two spoken parts."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A tag that ends at `end`.

    Args:
        end: behind its last character.
        pause: of a break.
        is_line: what follows stands on a line of its own.
        is_sound: the model makes a sound of it.
    """

    end: int
    pause: Pause | None = None
    is_line: bool = False
    is_sound: bool = False


def find_tag(
    text: str, place: int, sounds: frozenset[str] = frozenset(), *, is_final: bool
) -> Tag | bool | None:
    """The tag that starts at `place`; None where there is none, False where more text may tell.

    Args:
        text: with `<` at `place`.
        place: in it.
        sounds: names of the tags that the model makes sounds of.
        is_final: nothing follows `text`.
    """
    found = _TAG.match(text, place)
    if found is None:
        is_open = not is_final and _OPEN_TAG.fullmatch(text, place) is not None
        return False if is_open and _may_be_known(text, place, _NAMES | sounds) else None
    name = (found[1] or "").lower()
    if name in sounds:
        return Tag(end=found.end(), is_sound=True)
    if name and name not in _NAMES:
        return None
    pause = _pause(found[0]) if name == "break" and not found[0].startswith("</") else None
    return Tag(end=found.end(), pause=pause, is_line=name in _LINES)


def _may_be_known(text: str, place: int, names: frozenset[str]) -> bool:
    """Whether the name that starts behind `<` is one of `names`, or may become one."""
    found = _NAME.match(text, place)
    assert found is not None, "the pattern matches a bracket alone too"
    name = found[1].lower()
    if name and found.end() < len(text):
        return name in names
    return any(known.startswith(name) for known in names)


def _pause(tag: str) -> Pause:
    found = _TIME.search(tag)
    if found is None:
        return Pause(seconds=DEFAULT_PAUSE_S)
    scale = 1e-3 if found[3].lower() == "ms" else 1.0
    return Pause(seconds=min(float(found[2]) * scale, LONGEST_PAUSE_S))

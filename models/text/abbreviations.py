"""Abbreviations that readers speak in full. Pure, any thread."""

from __future__ import annotations

import re
from typing import Final

from models.text.tables import table

_TITLES: Final = table(
    """
    Mr: Mister, Mrs: Missus, Ms: Miz, Dr: Doctor, Prof: Professor, Gen: General, Sen: Senator,
    Rep: Representative, Gov: Governor, Lt: Lieutenant, Sgt: Sergeant, Capt: Captain, Col:
    Colonel, Rev: Reverend, Hon: Honorable, Mt: Mount, Ft: Fort
    """
)
"""Before a name, with or without a full stop."""

_PLAIN: Final = table(
    """
    Jr: junior, Sr: senior, Inc: incorporated, Ltd: limited, Corp: corporation, Co: company,
    Dept: department, Ave: avenue, Blvd: boulevard, Rd: road, Ln: lane, Hwy: highway, Apt:
    apartment, approx: approximately, est: estimated, dept: department, misc: miscellaneous,
    Mon: Monday, Tue: Tuesday, Tues: Tuesday, Wed: Wednesday, Thu: Thursday, Thurs: Thursday,
    Fri: Friday, Sat: Saturday, Sun: Sunday, Jan: January, Feb: February, Apr: April, Aug:
    August, Sep: September, Sept: September, Oct: October, Nov: November, Dec: December, appt:
    appointment, hrs: hours, mins: minutes, min: minutes, secs: seconds
    """
)
"""Only with a full stop."""

_NUMBERED: Final = table(
    """
    No: number, Nos: numbers, Vol: volume, Fig: figure, Figs: figures, Eq: equation, Ch:
    chapter, Sec: section, p: page, pp: pages, Apt: apartment, Ext: extension, ext: extension,
    no: number
    """
)
"""Before a figure, with a full stop."""

_ANYWHERE: Final = table(
    """
    e.g.: for example, i.e.: that is, etc.: etcetera, vs.: versus, a.k.a.: also known as, cf.:
    compare, et al.: and others, w/o: without, b/c: because, vs: versus, etc: etcetera, e.g: for
    example, i.e: that is, w/: with , c/o: care of, n/a: not applicable, N/A: not applicable,
    ca.: about
    """
)

_FOLDED: Final = {short.lower(): full for short, full in _ANYWHERE.items()}


def _any_of(words: dict[str, str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_ENDS_SENTENCE: Final = r"(?=\s*$|\s+[A-Z])"
_ANYWHERE_RE: Final = re.compile(
    rf"(?<![\w.])({_any_of(_ANYWHERE)})(?<!w/)(?![\w/])|(?<!\w)w/(?=[ A-Za-z])", re.IGNORECASE
)
_TITLE_RE: Final = re.compile(rf"(?<![\w.])({_any_of(_TITLES)})(?:\.\s{{0,4}}|\s{{1,4}})(?=[A-Z])")
_PLAIN_RE: Final = re.compile(rf"(?<![\w.])({_any_of(_PLAIN)})\.({_ENDS_SENTENCE})?")
_NUMBERED_RE: Final = re.compile(rf"(?<![\w.])({_any_of(_NUMBERED)})\.\s{{0,4}}(?=#?\d)")
_SAINT_RE: Final = re.compile(r"(?<![\w.])(St|Dr)\.(?=\s{1,4}[A-Z])")
_STREET_RE: Final = re.compile(rf"(?<![\w.])(St|Dr)\.({_ENDS_SENTENCE})?")
_DOTTED_RE: Final = re.compile(r"(?<![\w.])((?:[A-Za-z]\.){1,8}[A-Za-z])(\.?)(?![A-Za-z0-9])")
_STREET_WORDS: Final = frozenset(("In", "At", "On", "The", "From", "To", "Near", "And", "Is", "Of"))
_LAST_WORD: Final = re.compile(r"([A-Z][a-z]{1,20}|\d(?:st|nd|rd|th)) {1,2}$")


def expand_abbreviations(text: str) -> str:
    """`text` with its abbreviations in full words; a full stop stays where a sentence ends."""
    if "." not in text and "/" not in text and "vs" not in text and "etc" not in text:
        return _TITLE_RE.sub(lambda found: f"{_TITLES[found[1]]} ", text)
    text = _ANYWHERE_RE.sub(_anywhere, text)
    text = _NUMBERED_RE.sub(lambda found: f"{_NUMBERED[found[1]]} ", text)
    text = _SAINT_RE.sub(_saint, text)
    text = _TITLE_RE.sub(lambda found: f"{_TITLES[found[1]]} ", text)
    text = _STREET_RE.sub(_street, text)
    text = _PLAIN_RE.sub(_plain, text)
    return _DOTTED_RE.sub(_dotted, text)


def _anywhere(found: re.Match[str]) -> str:
    """The full form; after the full stop of `etc.` a sentence may end."""
    short = found[0]
    full = _FOLDED[short.lower()]
    rest = found.string[found.end() : found.end() + 3]
    ends = short.lower() == "etc." and (not rest.strip() or re.match(r"\s+[A-Z]", rest))
    return full + ("." if ends else "")


def _saint(found: re.Match[str]) -> str:
    """`St.` or `Dr.` before a capital: a saint or doctor, unless a street's name stands before."""
    before = _LAST_WORD.search(found.string, max(0, found.start() - 24), found.start())
    if before and before[1] not in _STREET_WORDS:
        return found[0]
    return "Saint" if found[1] == "St" else "Doctor"


def _street(found: re.Match[str]) -> str:
    """`Main St.`: a street; its full stop stays at the end of a sentence."""
    full = "Street" if found[1] == "St" else "Drive"
    return full + ("." if found[2] is not None else "")


def _plain(found: re.Match[str]) -> str:
    return _PLAIN[found[1]] + ("." if found[2] is not None else "")


def _dotted(found: re.Match[str]) -> str:
    """`U.S.A.` -> `USA`, `p.m.` -> `P M`; the last full stop stays at the end of a sentence."""
    letters = found[1].replace(".", "")
    rest = found.string[found.end() : found.end() + 4]
    ends = found[2] and (not rest.strip() or re.match(r"\s+[A-Z]", rest))
    if letters.lower() in ("am", "pm"):
        letters = " ".join(letters)
    return letters.upper() + ("." if ends else "")

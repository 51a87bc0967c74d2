# ruff: noqa: RUF001, RUF002 -- telling look-alike characters apart is this file's job
"""Characters that the later stages need not know: look-alikes, accents, emoji, odd spaces.

Pure, any thread. After `plain_characters` only ASCII is left, plus `°` and currency signs.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

KEPT_SIGNS: Final = "°€£¥₹"

_SPOKEN_SIGNS: Final = {
    "×": " times ",
    "÷": " divided by ",
    "±": " plus or minus ",
    "≈": " about ",
    "≤": " at most ",
    "≥": " at least ",
    "≠": " is not ",
    "→": " to ",
    "§": " section ",
    "∞": " infinity ",
    "√": " square root of ",
}
_LOOK_ALIKES: Final = {
    look_alike: plain
    for look_alikes, plain in (
        ("‘’‛ʼ´`′", "'"),
        ("“”„‟«»″", '"'),
        ("‐‑−﹣", "-"),
        ("—―⸺", "—"),
        ("–", "–"),
        ("•‣◦▪●", "•"),
        ("⁄∕", "/"),
        ("،、", ", "),
        ("。", ". "),
        ("؟", "? "),
        ("·", " "),
        ("ß", "ss"),
        ("ẞ", "SS"),
        ("æ", "ae"),
        ("Æ", "Ae"),
        ("œ", "oe"),
        ("Œ", "Oe"),
        ("ø", "o"),
        ("Ø", "O"),
        ("ł", "l"),
        ("Ł", "L"),
        ("đ", "d"),
        ("Đ", "D"),
        ("ðþ", "th"),
        ("ÐÞ", "Th"),
        ("ı", "i"),
    )
    for look_alike in look_alikes
}
_DROPPED: Final = "©®™℠ªº"
_GREEK: Final = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "", "sigma", "tau", "upsilon", "phi"),
    *("chi", "psi", "omega"),
)
_GREEK_LETTER: Final = re.compile(r"(?<![^\W\d_])[Α-Ωα-ω](?![^\W\d_])")
_MICRO: Final = re.compile("[µμ]([smg])(?![A-Za-z])")
_MICRO_UNITS: Final = {"s": " microseconds", "m": " micrometers", "g": " micrograms"}
_VULGAR: Final = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_FIGURES: Final = re.compile("[¼-¾⅐-⅞⁰¹²³⁴-⁹⁻！-～]+|−(?=[0-9０-９.])")
"""Fractions, powers, full-width ASCII, and the minus sign before a figure."""
_POWER: Final = re.compile(r"(?<=\w)(⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,6})")


def plain_figures(text: str) -> str:
    """`text` with its figures in ASCII: `½` -> `1/2`, `m²` -> `m^2`, `−５` -> `-5`."""
    if text.isascii():
        return text
    text = _VULGAR.sub(" ", text)
    text = _POWER.sub(r"^\1", text)
    text = _MICRO.sub(lambda found: _MICRO_UNITS[found[1]], text)
    return _FIGURES.sub(_ascii_figure, text)


def _ascii_figure(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0]).replace("⁄", "/").replace("−", "-")


def plain_characters(text: str) -> str:
    """`text` in ASCII, `°` and currency signs; `–`, `—` and `•` keep their roles for later.

    Emoji and letters of other scripts become spaces; zero-width characters vanish.
    """
    if text.isascii():
        return text
    text = plain_figures(text)
    text = "".join(" " if one in _DROPPED else one for one in text)
    text = unicodedata.normalize("NFKC", text)
    text = _GREEK_LETTER.sub(_greek_name, text)
    return "".join(map(_plain, text))


def _greek_name(found: re.Match[str]) -> str:
    """The name of a Greek letter that stands alone."""
    return f" {_GREEK[ord(found.group().lower()) - ord('α')]} "


@lru_cache(maxsize=4096)
def _plain(one: str) -> str:
    """What stands for one character."""
    if one.isascii() or one in KEPT_SIGNS:
        return one
    for table in (_LOOK_ALIKES, _SPOKEN_SIGNS):
        if one in table:
            return table[one]
    category = unicodedata.category(one)
    if category == "Nd":
        return str(unicodedata.decimal(one))
    if category in {"Cf", "Mn", "Me", "Cc"}:
        return " " if category == "Cc" else ""
    base = unicodedata.normalize("NFD", one)[0]
    return base if base.isascii() else " "

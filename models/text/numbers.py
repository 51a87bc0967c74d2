"""Numbers in English words. Pure functions of values and digit strings, any thread."""

from __future__ import annotations

from typing import Final

from models.text.tables import table

DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS: Final = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS: Final = (
    *("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)
_SCALES: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"))
_ORDINALS: Final = table(
    """
    one: first, two: second, three: third, five: fifth, eight: eighth, nine: ninth, twelve:
    twelfth
    """
)
LARGEST: Final = 10**15
"""Numbers from here on are read digit by digit."""


def cardinal(value: int) -> str:
    """`1250` -> `one thousand two hundred and fifty`; from `LARGEST` on digit by digit."""
    if value < 0:
        return f"minus {cardinal(-value)}"
    if value >= LARGEST:
        return digit_by_digit(str(value))
    words: list[str] = []
    for size, name in _SCALES:
        if value >= size:
            words.append(f"{_under_thousand(value // size)} {name}")
            value %= size
    if value or not words:
        joined = words and value < 100
        words.append(("and " if joined else "") + _under_thousand(value))
    return " ".join(words)


def ordinal(value: int) -> str:
    """`21` -> `twenty first`."""
    head, _, last = cardinal(value).rpartition(" ")
    if last in _ORDINALS:
        last = _ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return f"{head} {last}".strip()


def digit_by_digit(digits: str) -> str:
    """`555` -> `five five five`; characters that are no digits are left out."""
    return " ".join(DIGITS[int(one)] for one in digits if one.isascii() and one.isdigit())


def decimal(whole: str, fraction: str) -> str:
    """`3`, `14` -> `three point one four`."""
    return f"{whole_number(whole or '0')} point {digit_by_digit(fraction)}"


def whole_number(digits: str) -> str:
    """A digit string as one number; with a leading zero or very long, digit by digit."""
    if len(digits) > 15 or (len(digits) > 1 and digits.startswith("0")):
        return digit_by_digit(digits)
    return cardinal(int(digits))


def year(value: int) -> str:
    """`1999` -> `nineteen ninety nine`, `2005` -> `two thousand and five`, `1900` -> hundred."""
    century, rest = divmod(value, 100)
    if not 1000 <= value <= 2999 or value % 1000 < 10:
        return cardinal(value)
    if rest == 0:
        return f"{_under_thousand(century)} hundred"
    return f"{_under_thousand(century)} {'oh ' if rest < 10 else ''}{_under_thousand(rest)}"


def _under_thousand(value: int) -> str:
    """Words of 0..999."""
    if value < 10:
        return DIGITS[value]
    if value < 20:
        return _TEENS[value - 10]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _TENS[tens] + (f" {DIGITS[ones]}" if ones else "")
    hundreds, rest = divmod(value, 100)
    return f"{DIGITS[hundreds]} hundred" + (f" and {_under_thousand(rest)}" if rest else "")

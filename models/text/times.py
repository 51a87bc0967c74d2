# ruff: noqa: RUF001 -- dashes of every length are input here
"""Dates, years and times of day in words. Pure, any thread. Runs before other figures are read."""

from __future__ import annotations

import re
from typing import Final

from models.text.numbers import cardinal, ordinal, year

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_SHORT: Final = {name[:3]: name for name in _MONTHS}
_MONTH: Final = rf"({'|'.join(_MONTHS)}|{'|'.join(_SHORT)})\.?"
_ISO: Final = re.compile(r"(?<![\w/-])(\d{4})-(\d{1,2})-(\d{1,2})(?![\w/-]|\.\d)(?:T(?=\d))?")
_SLASHED: Final = re.compile(r"(?<![\w/.-])(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})(?![\w/-]|\.\d)")
_MONTH_DAY: Final = re.compile(
    rf"\b{_MONTH} {{1,2}}(\d{{1,2}})(?:st|nd|rd|th)?(?:(?:, ?| )(\d{{4}}))?(?![\w/:%-]|[.,]\d)"
)
_DAY_MONTH: Final = re.compile(
    rf"(?<![\w/.-])(\d{{1,2}})(?:st|nd|rd|th)?( of)? {_MONTH}(?:,? (\d{{4}}))?(?![\w/:%-]|[.,]\d)"
)
_MONTH_YEAR: Final = re.compile(rf"\b{_MONTH},? (\d{{4}})(?![\w/:%-]|[.,]\d)")
_DECADE: Final = re.compile(r"(?<![\w/.-])'?((?:1[0-9]|20)?)([1-9]0|00)'?s\b")
_CUED_YEAR: Final = re.compile(
    r"\b((?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|[Yy]ear|[Bb]efore|[Aa]fter|[Dd]uring|[Ff]rom|[Cc]irca"
    r"|[Ss]pring|[Ss]ummer|[Aa]utumn|[Ff]all|[Ww]inter|[Bb]etween|[Ee]arly|[Ll]ate) )"
    r"([12]\d{3})(?![\w/:%-]|[.,]\d| ?[°%])"
)
_YEAR_RANGE: Final = re.compile(r"(?<![\w/.,$€£-])([12]\d{3}) ?[-–] ?([12]\d{3})(?![\w/-]|[.,]\d)")
_YEAR: Final = re.compile(r"(?<![\w/.,:$€£¥₹#+-])((?:19|20)\d\d)(?![\w/:%-]|[.,]\d)")
_CLOCK: Final = re.compile(
    r"(?<![\w:.])(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d{1,6})?)?(?![\d:])"
    r"(?: {0,2}([AaPp])\.? ?[Mm](?:\.(?=(\s*$|\s+[A-Z0-9]))?|(?!\w)))?"
)
_HOUR: Final = re.compile(
    r"(?<![\w:.])(1[0-2]|0?[1-9]) {0,2}([AaPp])\.? ?[Mm](?:\.(?=(\s*$|\s+[A-Z0-9]))?|(?!\w))"
)


def speak_times(text: str) -> str:
    """`text` with dates, years and clock times in words; what is none stays as it is."""
    if "-" in text or "/" in text:
        text = _ISO.sub(lambda found: _date(found, found[1], found[2], found[3]), text)
        text = _SLASHED.sub(_slashed, text)
    text = _HOUR.sub(
        lambda found: f"{_hour(int(found[1]))} {_half(found[2])}{_stop(found[3])}", text
    )
    text = _CLOCK.sub(_clock, text)
    text = _MONTH_DAY.sub(_month_day, text)
    text = _DAY_MONTH.sub(_day_month, text)
    text = _MONTH_YEAR.sub(lambda found: f"{_month(found[1])} {year(int(found[2]))}", text)
    text = _DECADE.sub(_decade, text)
    text = _YEAR_RANGE.sub(lambda found: f"{year(int(found[1]))} to {year(int(found[2]))}", text)
    text = _CUED_YEAR.sub(lambda found: found[1] + year(int(found[2])), text)
    return _YEAR.sub(lambda found: year(int(found[1])), text)


def _month(name: str) -> str:
    return _SHORT[name[:3]]


def _date(found: re.Match[str], years: str, month: str, day: str) -> str:
    """Month, day and year; the text as it was where there is no such day."""
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return found[0]
    value = int(years) + (2000 if len(years) == 2 else 0)
    return f"{_MONTHS[int(month) - 1]} {ordinal(int(day))}, {year(value)} ".rstrip() + (
        " " if found[0].endswith("T") else ""
    )


def _slashed(found: re.Match[str]) -> str:
    """Month first as in the US; day first where only that makes a date."""
    first, second = int(found[1]), int(found[2])
    swapped = first > 12 >= second
    month, day = (found[2], found[1]) if swapped else (found[1], found[2])
    return _date(found, found[3], month, day)


def _month_day(found: re.Match[str]) -> str:
    if not 1 <= int(found[2]) <= 31:
        return found[0]
    tail = f", {year(int(found[3]))}" if found[3] else ""
    return f"{_month(found[1])} {ordinal(int(found[2]))}{tail}"


def _day_month(found: re.Match[str]) -> str:
    if not 1 <= int(found[1]) <= 31:
        return found[0]
    tail = f", {year(int(found[4]))}" if found[4] else ""
    article = "" if re.search(r"\bthe $", found.string[: found.start()][-4:]) else "the "
    return f"{article}{ordinal(int(found[1]))} of {_month(found[3])}{tail}"


def _decade(found: re.Match[str]) -> str:
    """`1990s` -> `nineteen nineties`, `'80s` -> `eighties`; `2000s` -> `two thousands`."""
    century, tens = found[1], found[2]
    if tens == "00":
        if not century:
            return found[0]
        return "two thousands" if century == "20" else f"{cardinal(int(century))} hundreds"
    plural = cardinal(int(tens))[:-1] + "ies" if tens != "10" else "tens"
    return f"{cardinal(int(century))} {plural}" if century else plural


def _clock(found: re.Match[str]) -> str:
    """`5:30 p.m.` -> `five thirty P M`, `10:00` -> `ten o'clock`; other figures stay."""
    hour, minute = int(found[1]), int(found[2])
    if hour > 24 or minute > 59 or int(found[3] or 0) > 59:
        return found[0]
    half = f" {_half(found[4])}{_stop(found[5])}" if found[4] else ""
    seconds = f" and {cardinal(int(found[3]))} seconds" if found[3] else ""
    if minute == 0 and not half:
        spoken = f"{_hour(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"
    elif minute == 0:
        spoken = _hour(hour)
    else:
        spoken = f"{_hour(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    return spoken + seconds + half


def _hour(hour: int) -> str:
    return cardinal(hour)


def _half(letter: str) -> str:
    return f"{letter.upper()} M"


def _stop(end: str | None) -> str:
    """A full stop where the one of `p.m.` also ends the sentence."""
    return "." if end is not None else ""

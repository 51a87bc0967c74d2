# ruff: noqa: RUF001 -- dashes of every length are input here
"""Figures in running text: money, measures, fractions, ranges, phone numbers, and all the rest.

Pure, any thread. Runs after dates and times; leaves no digit behind.
"""

from __future__ import annotations

import re
from typing import Final

from models.text.measures import (
    CURRENCIES,
    CURRENCY_CODES,
    MEASURES,
    SCALES,
    measure_name,
    plural,
)
from models.text.numbers import cardinal, decimal, digit_by_digit, ordinal, whole_number
from models.text.tables import table

_NUMBER: Final = r"\d{1,40}(?:\.\d{1,40})?"
_SCALE: Final = "|".join(sorted(SCALES, key=len, reverse=True))
_MEASURE: Final = "|".join(sorted(map(re.escape, MEASURES), key=len, reverse=True))
_END: Final = r"(?![A-Za-z0-9])"
_NO_MORE: Final = r"(?![\d]|[.,]\d)"

_THOUSANDS: Final = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3}){1,12})(?![\d]|,\d)")
_PHONE: Final = re.compile(
    r"(?<![\w.-])(\+?\d{0,3}[-. ]?\(\d{3}\) ?\d{3}[-. ]\d{4}|\+\d{1,3}(?:[-. ]?\d{2,5}){2,5}"
    r"|(?:\d{1,3}[-. ])?\d{3}[-.]\d{3}[-.]\d{4}|\d{3} \d{3} \d{4}|\d{3}-\d{4}"
    r"|\d{3}-\d{2}-\d{4}|\d{4}[- ]\d{4}[- ]\d{4}[- ]\d{4})(?![\w-]|\.\d)"
)
_CALL: Final = re.compile(
    r"\b((?:[Cc]all|[Dd]ial|[Pp]ress|[Cc]ode|PIN|pin) )(\d{3,12})(?![\w.,:/-]\d|\w)"
)
_ADDRESS: Final = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(:\d{1,5})?(?![\w])")
_VERSION: Final = re.compile(r"(?<![\w.])(v?)(\d{1,6}(?:\.\d{1,6}){2,6})(?!\w)", re.IGNORECASE)
_V_NUMBER: Final = re.compile(rf"(?<![\w.])[vV](?={_NUMBER}(?!\w))")
_MONEY: Final = re.compile(
    rf"(?<!\w)(?:US|CA|AU|A|C)?([$€£¥₹]) ?({_NUMBER})(?:(?: ?({_SCALE}){_END})|{_NO_MORE})?"
)
_MONEY_AFTER: Final = re.compile(
    rf"(?<![\w.])({_NUMBER}) ?(?:({_SCALE}) )?([€£¥₹]|{'|'.join(CURRENCY_CODES)}){_END}"
)
_PERCENT: Final = re.compile(r"(?<=\d) ?%")
_RANGE: Final = re.compile(
    r"(?<![\w.-])(\$?[€£]?\d[\d.]{0,20}[A-Za-z%°]{0,4}) ?– ?(?=[$€£]?\d)"
    r"|(?<![\w.-])(\d[\d.]{0,20}%?)-(?=[$€£]?\d[\d.]{0,20}(?![\d-]))"
)
_MINUS: Final = re.compile(r"(?<![\w)^])- ?(?=[$€£¥₹]?\.?\d)")
_BINARY_MINUS: Final = re.compile(r"(?<=\d) - (?=\d)")
_TIMES: Final = re.compile(r"(?<=\d) ?[xX*] ?(?=\d)")
_MEASURED: Final = re.compile(
    rf"(?<![\w.])({_NUMBER})([ -]?)({_MEASURE})(?:\^?([23]))?"
    rf"(?:/(h|hr|s|min|kg|km|m|l|day|week|month|year))?{_END}"
)
_MIXED: Final = re.compile(r"(?<![\w./])(\d{1,4}) (\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)")
_FRACTION: Final = re.compile(r"(?<![\w./])(\d{1,4})/(\d{1,4})(?![\w/]|[.,]\d)")
_ORDINAL: Final = re.compile(r"(?<![\w.])(\d{1,15})(?:st|nd|rd|th)(?!\w)", re.IGNORECASE)
_SCALED: Final = re.compile(rf"(?<![\w.])({_NUMBER})(k|K|M|B|bn){_END}")
_RATIO: Final = re.compile(r"(?<=\d):(?=\d)")
_DECIMAL: Final = re.compile(r"(?<![\d.])(\d{0,40})\.(\d{1,40})(?![\d])")
_WHOLE: Final = re.compile(r"\d+")
_HASH: Final = re.compile(r"#(?=\d)")
_POWER: Final = re.compile(r"\^ ?(-?\d{1,6})")
_PLURAL: Final = re.compile(r"(?<=[A-Za-z])(\d{1,2})s(?!\w)")
_RESOLUTION: Final = re.compile(r"(?<![\w.])([48])[kK](?!\w)")
_DENOMINATORS: Final = {2: "half", 4: "quarter", 100: "hundredth", 1000: "thousandth"}
_IDIOMS: Final = {"24/7": "twenty four seven", "9/11": "nine eleven", "50/50": "fifty fifty"}
_PER: Final = table(
    """
    h: hour, hr: hour, s: second, min: minute, kg: kilogram, l: liter, km: kilometer, m: meter
    """
)
_NEED_TOUCH: Final = frozenset(("A", "B", "J", "N", "x", "in", "us", "bar", "min"))
"""Signs that are also words or letters: only right behind the figure (`5A`, not `5 A`)."""


def speak_figures(text: str) -> str:
    """`text` without digits: every figure in words."""
    if not any("0" <= one <= "9" for one in text):
        return text
    text = _THOUSANDS.sub(lambda found: found[1].replace(",", ""), text)
    text = _PHONE.sub(lambda found: _phone(found[1]), text)
    text = _CALL.sub(lambda found: f"{found[1]}{digit_by_digit(found[2])}", text)
    text = _ADDRESS.sub(_address, text)
    text = _VERSION.sub(_version, text)
    text = _V_NUMBER.sub("version ", text)
    text = _RANGE.sub(lambda found: f"{found[1] or found[2]} to ", text)
    text = _MINUS.sub(" minus ", text)
    text = _BINARY_MINUS.sub(" minus ", text)
    text = _MONEY.sub(_money, text)
    text = _MONEY_AFTER.sub(_money_after, text)
    text = _TIMES.sub(" by ", text)
    text = _MEASURED.sub(_measured, text)
    text = _POWER.sub(_power, text)
    text = _MIXED.sub(lambda found: f"{whole_number(found[1])} and {_mixed(found)}", text)
    text = _FRACTION.sub(_fraction, text)
    text = _ORDINAL.sub(lambda found: f" {ordinal(int(found[1]))} ", text)
    text = _PLURAL.sub(lambda found: f" {_plural_number(int(found[1]))} ", text)
    text = _RESOLUTION.sub(lambda found: f"{cardinal(int(found[1]))} K", text)
    text = _SCALED.sub(lambda found: f"{_number(found[1])} {SCALES[found[2]]}", text)
    text = _HASH.sub(" number ", text)
    text = _PERCENT.sub(" percent", text)
    text = _RATIO.sub(" to ", text)
    text = _DECIMAL.sub(lambda found: f" {decimal(found[1], found[2])} ", text)
    return _WHOLE.sub(_whole, text)


def _number(digits: str) -> str:
    """A figure with or without decimals."""
    whole, _, fraction = digits.partition(".")
    return decimal(whole, fraction) if fraction else whole_number(whole)


def _phone(digits: str) -> str:
    """Groups of digits, a short pause between them."""
    groups = re.findall(r"\d+", digits)
    spoken = ", ".join(digit_by_digit(group) for group in groups)
    return f"plus {spoken}" if digits.startswith("+") else spoken


def _address(found: re.Match[str]) -> str:
    """An internet address, part by part."""
    spoken = " dot ".join(whole_number(part) for part in found[1].split("."))
    return spoken + (f" port {whole_number(found[2][1:])}" if found[2] else "")


def _version(found: re.Match[str]) -> str:
    spoken = " point ".join(whole_number(part) for part in found[2].split("."))
    return f"version {spoken}" if found[1] else spoken


def _money(found: re.Match[str]) -> str:
    """`$4.50` -> `four dollars and fifty cents`; `$1.5M` -> `one point five million dollars`."""
    name, part = CURRENCIES[found[1]]
    scale = found[3]
    whole, _, cents = found[2].partition(".")
    if scale:
        return f"{_number(found[2])} {SCALES[scale]} {plural(name, is_one=False)} "
    is_one = int(whole) == 1
    if not cents or not part or len(cents) > 2:
        return f"{_number(found[2])} {plural(name, is_one=is_one and not cents)} "
    n_cents = int(cents.ljust(2, "0"))
    small = f"{cardinal(n_cents)} {plural(part, is_one=n_cents == 1)} "
    if n_cents == 0:
        return f"{whole_number(whole)} {plural(name, is_one=is_one)} "
    if int(whole) == 0:
        return small
    return f"{whole_number(whole)} {plural(name, is_one=is_one)} and {small}"


def _money_after(found: re.Match[str]) -> str:
    """`5 €` and `20 USD`."""
    sign = CURRENCY_CODES.get(found[3], found[3])
    scale = f" {SCALES[found[2]]}" if found[2] else ""
    is_one = found[1] == "1" and not scale
    return f"{_number(found[1])}{scale} {plural(CURRENCIES[sign][0], is_one=is_one)}"


def _measured(found: re.Match[str]) -> str:
    """`3 km` -> `three kilometers`; signs that may be words stay unless they touch the figure."""
    figure, gap, sign, power, per = found.groups()
    if gap and sign in _NEED_TOUCH:
        return found[0]
    is_one = figure == "1" or gap == "-"
    spoken = f"{_number(figure)} {measure_name(sign, is_one=is_one, power=power or '')}"
    return f"{spoken} per {_PER.get(per, per)}" if per else spoken


def _power(found: re.Match[str]) -> str:
    """`^2` -> squared, `^10` -> to the power of ten."""
    known = {"2": " squared ", "3": " cubed "}.get(found[1])
    return known or f" to the power of {cardinal(int(found[1]))} "


def _plural_number(value: int) -> str:
    """The `3s` of `MP3s`: threes; six and the tens take their own endings."""
    word = cardinal(value)
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("x") else "s")


def _mixed(found: re.Match[str]) -> str:
    """The fraction of `3 1/2`: `a half`."""
    top, bottom = int(found[2]), int(found[3])
    spoken = _parts(top, bottom)
    return f"a {spoken.split()[1]}" if top == 1 and len(spoken.split()) == 2 else spoken


def _fraction(found: re.Match[str]) -> str:
    """`3/4` -> `three quarters`, `7/13` -> `seven over thirteen`, `24/7` as people say it."""
    return _IDIOMS.get(found[0]) or f"{_parts(int(found[1]), int(found[2]))}"


def _parts(top: int, bottom: int) -> str:
    if not (2 <= bottom <= 10 or bottom in _DENOMINATORS) or top == 0:
        return f"{cardinal(top)} over {cardinal(bottom)}"
    name = _DENOMINATORS.get(bottom) or ordinal(bottom)
    if top != 1:
        name = "halves" if name == "half" else f"{name}s"
    return f"{cardinal(top)} {name}"


def _whole(found: re.Match[str]) -> str:
    """A bare digit string: long or led by a zero, digit by digit; between letters, apart."""
    digits = found[0]
    text, start, end = found.string, found.start(), found.end()
    is_after, is_before = text[max(start - 1, 0) : start].isalpha(), text[end : end + 1].isalpha()
    is_long = len(digits) >= 7 and not digits.endswith("000")
    by_digit = is_long or ((is_after or is_before) and len(digits) > 2)
    spoken = digit_by_digit(digits) if by_digit else whole_number(digits)
    return f"{' ' * is_after}{spoken}{' ' * is_before}"

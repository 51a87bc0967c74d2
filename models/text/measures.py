"""Units of measure and money: their spoken names. Pure data and functions, any thread."""

from __future__ import annotations

from typing import Final

from models.text.tables import table

CURRENCIES: Final = {
    "$": ("dollar", "cent"),
    "€": ("euro", "cent"),
    "£": ("pound", "penny"),
    "¥": ("yen", ""),
    "₹": ("rupee", "paisa"),
}
"""Sign -> names of the unit and of its hundredth part."""
CURRENCY_CODES: Final = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
SCALES: Final = table(
    """
    k: thousand, K: thousand, M: million, m: million, B: billion, bn: billion, T: trillion,
    thousand: thousand, million: million, billion: billion, trillion: trillion
    """
)
MEASURES: Final = table(
    """
    km: kilometer, m: meter, cm: centimeter, mm: millimeter, nm: nanometer, mi: mile, ft: foot,
    yd: yard, in: inch, kg: kilogram, g: gram, mg: milligram, lb: pound, lbs: pound, oz: ounce,
    l: liter, L: liter, ml: milliliter, mL: milliliter, gal: gallon, s: second, sec: second, ms:
    millisecond, us: microsecond, ns: nanosecond, min: minute, h: hour, hr: hour, hrs: hour, B:
    byte, KB: kilobyte, kB: kilobyte, MB: megabyte, GB: gigabyte, TB: terabyte, Hz: hertz, kHz:
    kilohertz, MHz: megahertz, GHz: gigahertz, W: watt, kW: kilowatt, MW: megawatt, kWh:
    kilowatt hour, Wh: watt hour, V: volt, mV: millivolt, A: amp, mA: milliamp, mAh: milliamp
    hour, dB: decibel, px: pixel, N: newton, J: joule, kJ: kilojoule, cal: calorie, kcal:
    kilocalorie, Pa: pascal, kPa: kilopascal, bar: bar, psi: P S I, rpm: R P M, fps: frames per
    second, mph: miles per hour, kph: kilometers per hour, bpm: beats per minute, Mbps: megabits
    per second, Gbps: gigabits per second, kbps: kilobits per second, °C: degree Celsius, °F:
    degree Fahrenheit, °: degree, x: times, um: micrometer, ug: microgram
    """
)
"""Sign behind a figure -> name of one."""

_PLURALS: Final = table(
    """
    foot: feet, inch: inches, hertz: hertz, kilohertz: kilohertz, yen: yen, megahertz:
    megahertz, gigahertz: gigahertz, penny: pence, paisa: paise, degree Celsius: degrees
    Celsius, degree Fahrenheit: degrees Fahrenheit
    """
)
_FIXED: Final = (" per ", " M", " I", "times")


def measure_name(sign: str, *, is_one: bool, power: str = "") -> str:
    """Spoken name of a measure: `km`, not one, `2` -> `square kilometers`."""
    prefix = {"2": "square ", "3": "cubic "}.get(power, "")
    return prefix + plural(MEASURES[sign], is_one=is_one)


def plural(name: str, *, is_one: bool) -> str:
    """`name` as it follows one or another number."""
    if is_one or any(mark in name for mark in _FIXED):
        return name
    return _PLURALS.get(name, f"{name}s")

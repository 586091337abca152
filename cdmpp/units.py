"""Quantity: a number as people read it, with a unit and a prefix that fits."""

from __future__ import annotations

import math

_PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """``(0.00123, "s")`` -> ``1.23 ms``; a dash where nothing is known."""
    if value is None or not math.isfinite(value):
        return "-"
    return " ".join(_parts(value, unit, digits))


def span(low: float, high: float, unit: str, digits: int = 3) -> str:
    """``1.10 - 1.52 ms``: the unit once where both have the same."""
    (first, unit_low), (last, unit_high) = _parts(low, unit, digits), _parts(high, unit, digits)
    return f"{first} - {last} {unit_high}" if unit_low == unit_high else f"{first} {unit_low} - {last} {unit_high}"


def percent(share: float) -> str:
    """``0.123`` -> ``12.3 %``."""
    return f"{100 * share:.1f} %"


def visible(text: str) -> str:
    """On one line and without control characters, which could rewrite a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _parts(value: float, unit: str, digits: int) -> tuple[str, str]:
    if abs(value) < 1e-12:  # what rounding leaves of nothing
        return "0", unit
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])  # of the rounded number: 999.9 may be 1.00 k
    power = min(max(exponent // 3, min(_PREFIXES)), max(_PREFIXES))
    if unit != "s":
        power = max(power, 0)
    places = max(0, digits - 1 - (exponent - 3 * power)) if unit != "B" or power else 0
    return f"{value / 1000**power:.{places}f}", f"{_PREFIXES[power]}{unit}"

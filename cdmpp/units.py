"""Units: the one formatter of seconds, bytes, shares and rates, with prefixes of the SI; microseconds are ``us``."""

from __future__ import annotations

import math
from typing import Any

_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}
SHARE, RATE, PERCENT = "share", "/s", "%"
"""Units with a form of their own: a share of 1 is shown in percent, a rate of examples keeps its digits, and a number
that is a percentage already is shown as it is."""


def shown(value: Any, unit: str = "", digits: int = 3) -> str:
    """Write ``value`` as people read it, on one line and without control characters; a dash where nothing is known.

    Args:
        value: a number in ``unit``, a text, a truth value, or a list of texts.
        unit: ``s``, ``B``, ``FLOP`` or another unit that takes prefixes, ``share``, ``/s``, ``%``, or empty for a count
            or a text.
        digits: significant digits; of ``%`` the digits after the point.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | list | tuple):
        return visible(value if isinstance(value, str) else ", ".join(map(str, value)))
    if value is None or not math.isfinite(value):
        return "-"
    if unit == SHARE:
        return percent(value)
    if unit == RATE:
        return rate(value)
    if unit == PERCENT:
        return f"{value:.{digits}f}"
    if unit:
        return quantity(value, unit, digits)
    if isinstance(value, int) or not value:
        return str(int(value))
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """Write ``(0.00123, "s")`` as ``1.23 ms``; a dash where nothing is known."""
    if value is None or not math.isfinite(value):
        return "-"
    return " ".join(_parts(value, unit, digits))


def span(low: float, high: float, unit: str, digits: int = 3) -> str:
    """Write ``1.10 - 1.52 ms``: the unit once where both have the same, ``from 1.10 ms up`` without an end."""
    if unit == RATE:
        return f"{rate(low, '')} - {rate(high)}"
    if not math.isfinite(high):
        return f"from {quantity(low, unit, digits)} up" if math.isfinite(low) else "-"
    (first, unit_low), (last, unit_high) = _parts(low, unit, digits), _parts(high, unit, digits)
    return f"{first} - {last} {unit_high}" if unit_low == unit_high else f"{first} {unit_low} - {last} {unit_high}"


def percent(share: float, signed: bool = False) -> str:
    """Write ``0.123`` as ``12.3 %``; ``signed``, for a change: ``+12.3 %``."""
    rounded = round(100 * share, 1) + 0.0  # no minus before what rounding leaves of nothing
    return f"{rounded:+.1f} %" if signed else f"{rounded:.1f} %"


def rate(per_s: float, unit: str = RATE) -> str:
    """Write ``813.4`` as ``813/s``: three digits, or all before the point."""
    return f"{per_s:,.0f}{unit}" if per_s >= 100 else f"{per_s:.3g}{unit}"


def visible(text: str) -> str:
    """Write ``text`` on one line and without control characters, which could rewrite a terminal."""
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

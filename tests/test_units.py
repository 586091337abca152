"""Numbers as people read them: prefixes, units, intervals, and what is no number."""

from __future__ import annotations

import pytest

from cdmpp.units import PERCENT, RATE, SHARE, percent, quantity, rate, shown, span, visible


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, "s", "1.23 ms"),
        (0.9999, "s", "1.00 s"),
        (9.996e-6, "s", "10.0 us"),
        (999.96e3, "B", "1.00 MB"),
        (12, "B", "12 B"),
        (0.25, "FLOP", "0.250 FLOP"),
        (0, "s", "0 s"),
        (-957e-6, "s", "-957 us"),
        (None, "s", "-"),
        (float("nan"), "s", "-"),
        (1e-16, "s", "0 s"),
        (3e-11, "s", "0.0300 ns"),
    ],
)
def test_a_quantity_has_the_prefix_that_fits(value, unit, text):
    assert quantity(value, unit) == text


def test_a_span_names_its_unit_once_where_it_can():
    assert span(1.1e-3, 1.5e-3, "s") == "1.10 - 1.50 ms"
    assert span(0.9e-3, 1.5e-3, "s") == "900 us - 1.50 ms"
    assert rate(32 / 1.5e-3) == "21,333/s" and rate(2.0) == "2/s" and rate(0.0) == "0/s"
    assert span(540, 734, "/s") == "540 - 734/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.500 s"), (0.00123, "1.230 ms"), (4.5678e-5, "45.68 us"), (9.9e-9, "9.900 ns"), (123.4e-6, "123.4 us")],
)
def test_four_digits(seconds, text):
    assert quantity(seconds, "s", 4) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, SHARE, "12.3 %"),
        (813.4, RATE, "813/s"),
        (12.345, PERCENT, "12.345"),
        (1.5e-3, "s", "1.50 ms"),
        (62, "", "62"),
        (1234.5678, "", "1235"),
        (0.5, "", "0.500"),
        (0.0, "", "0"),
        (True, "", "yes"),
        (None, SHARE, "-"),
        (float("inf"), "", "-"),
        (["a", "b\n"], "", "a, b\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_each_unit_has_one_form(value, unit, text):
    assert shown(value, unit) == text


def test_no_control_character_reaches_a_terminal():
    assert visible("a\x1b[31m\nb") == "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b"


def test_a_change_has_its_sign():
    assert percent(0.123) == "12.3 %" and percent(0.123, signed=True) == "+12.3 %"
    assert percent(-1e-9, signed=True) == "+0.0 %" and percent(-0.05, signed=True) == "-5.0 %"


def test_a_span_without_an_end():
    assert span(0.0011, float("inf"), "s") == "from 1.10 ms up"
    assert span(float("inf"), float("inf"), "s") == "-"

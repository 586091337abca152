"""The page of device sheets."""

from __future__ import annotations

from benchmarks.publish import sheets
from cdmpp.devices.device import all_devices, get
from cdmpp.devices.sheet_check import peak_tflops


def test_the_page_is_that_of_the_sheets():
    lines = sheets.lines()
    assert sheets.PAGE.read_text(encoding="utf-8") == "\n".join(lines) + "\n"
    assert sum(line.startswith("| `") for line in lines) == len(all_devices()) + len(sheets.RATIOS)


def test_the_peak_is_made_of_its_factors():
    """An H100: 1,980 MHz, 132 multiprocessors, 128 lanes."""
    h100 = get("h100")
    assert peak_tflops(h100.kind, h100.spec) == 2e-6 * 1980 * 132 * 128
    assert peak_tflops("gpu", {**h100.spec, "clock_mhz": None}) == 0

"""The page of the device sheets, checked against themselves: ``python -m benchmarks.publish.sheets``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.publish.markdown import table, write_page
from cdmpp.devices.device import Device, all_devices
from cdmpp.devices.sheet_check import PEAK_TOLERANCE, RATIOS, peak_tflops

PAGE = Path(__file__).parents[2] / "docs" / "results" / "sheets.md"


def lines() -> list[str]:
    """Return the lines of the page."""
    head = ("device", "kind", "TFLOP/s", "clock x cores x lanes x 2", "off, %", *(_words(pair) for pair in RATIOS))
    found = [
        "# Device sheets",
        "",
        "Written by `python -m benchmarks.publish.sheets`. Each sheet is checked when it is read: every number against "
        f"the range of its kind, the peak against its own factors (to {100 * PEAK_TOLERANCE:.0f} %; a sheet may give a "
        "range instead of one clock), and quotients against what a device can have. A number off by 1000 is refused.",
        "",
        *table(
            ("quotient", "least", "most"),
            [(_words(pair), *(f"{limit:.3g}" for limit in RATIOS[pair][:2])) for pair in RATIOS],
        ),
        "",
        *table(head, [_row(one) for one in sorted(all_devices(), key=lambda one: (one.kind, one.name))], left=2),
    ]
    return found


def _row(device: Device) -> tuple[object, ...]:
    peak, made = device.spec["fp32_tflops"], peak_tflops(device.kind, device.spec)
    off = f"{100 * (made / peak - 1):+.1f}" if made and peak else ""
    values = [(device.spec[over], device.spec[under]) for over, under in RATIOS]
    return (
        f"`{device.name}`", device.kind, f"{peak:.4g}" if peak else "", f"{made:.4g}" if made else "", off,
        *(f"{a / b:.3g}" if a and b else "" for a, b in values),
    )  # fmt: skip


def _words(pair: tuple[str, str]) -> str:
    return " / ".join(f"`{name}`" for name in pair)


def main() -> None:
    """Write the page."""
    write_page(PAGE, lines())


if __name__ == "__main__":
    main()

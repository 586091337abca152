"""The part ``network`` of a device file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp import devices
from cdmpp.devices.launch_overheads import LaunchOverheads, read_launch_overheads
from cdmpp.errors import CdmppError

WHERE = Path("mine.yaml")


def number(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit, "source": "measured: here"}


def test_numbers_are_in_seconds_and_what_is_not_there_is_unknown():
    given = {"call_us": number(2, "us"), "exposed_share": number(0.5, "1"), "resident_kb": number(3, "KiB")}
    assert read_launch_overheads(WHERE, given, {}) == LaunchOverheads(
        call_s=2e-6, exposed_share=0.5, resident_bytes=3072
    )
    assert read_launch_overheads(WHERE, None, {}) == LaunchOverheads()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"calls": 1}, "mapping of call_us"),
        ([1], "mapping of call_us"),
        ({"call_us": number(2, "ms")}, "network.call_us.unit is 'ms'"),
        ({"call_us": number(-2, "us")}, "network.call_us.value"),
        ({"streams": 0}, "network.streams is 0"),
        ({"engines": {"matrix": "conv2d"}}, "network.engines"),
    ],
)
def test_what_cannot_be_is_named(content, told):
    with pytest.raises(CdmppError, match=told):
        read_launch_overheads(WHERE, content, {})


def test_goya_has_two_engines():
    overheads = devices.get("hl-100").launch_overheads
    assert overheads.engine_of("conv2d") == "matrix" and overheads.engine_of("softmax") == "vector"

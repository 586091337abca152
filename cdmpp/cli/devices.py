"""``cdmpp devices``: every described device, with the data and the models that are here for it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from cdmpp import devices
from cdmpp.cli.data.summary import plain
from cdmpp.cli.output import print_json, print_table

_NUMBERS = {"cores": "core_count", "MHz": "clock_mhz", "fp32 TFLOP/s": "fp32_tflops", "GB/s": "bandwidth_gbps",
            "GB": "memory_gb"}  # fmt: skip
_ORIGINS = ("measured", "described", "range", "unknown")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--json", action="store_true", help="machine-readable, all numbers with their sources")


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON."""
    from cdmpp.data.summary import known_paths, summarise
    from cdmpp.predict.catalogue import models

    data = summarise(known_paths())
    usable = [entry for entry in models() if entry.usable]
    shown, listed = [], []
    for device in devices.all_devices():
        data_sets = [entry for entry in data if entry.device == device.name]
        names = [entry.name for entry in usable if device.name in entry.devices]
        described = {key: getattr(device, key) for key in ("name", "title", "kind", "core", "target")}
        spec = {key: _number(device, key) for key in devices.SPEC_FIELDS}
        listed.append({**described, "spec": spec, "data": [plain(entry) for entry in data_sets], "models": names})
        numbers = [_text(device, key) for key in _NUMBERS.values()]
        origins = Counter(device.origin(key) for key in devices.SPEC_FIELDS)
        known = ", ".join(f"{origins[name]} {name}" for name in _ORIGINS if origins[name])
        sizes = [f"{entry.programs} programs" if entry.programs else entry.folder.name for entry in data_sets]
        shown.append((device.name, device.kind, device.title, *numbers, known, ", ".join(sizes), ", ".join(names)))
    if options.json:
        print_json(listed)
        return
    headings = ("name", "kind", "what it is", *_NUMBERS, "numbers", "data", "model")
    caption = "- : not published. `cdmpp data probe` times a CPU's own numbers; --json tells each with its source"
    print_table("Devices", headings, shown, right=_NUMBERS, caption=caption)


def _number(device: devices.Device, name: str) -> dict[str, Any]:
    bounds = {"range": list(device.ranges[name])} if name in device.ranges else {}
    return {"value": device.spec[name], **bounds, "known": device.origin(name), "source": device.sources[name]}


def _text(device: devices.Device, name: str) -> str:
    if name in device.ranges:
        return "-".join(f"{value:.4g}" for value in device.ranges[name])
    value = device.spec[name]
    return "-" if value is None else f"{value:.4g}"

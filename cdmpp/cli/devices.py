"""``cdmpp devices``: every described device, with the data and the models that are here for it."""

from __future__ import annotations

import argparse

from cdmpp import devices
from cdmpp.cli.data import plain
from cdmpp.cli.output import print_json, print_table

_NUMBERS = {"cores": "core_count", "MHz": "clock_mhz", "fp32 TFLOP/s": "fp32_tflops", "GB/s": "bandwidth_gbps",
            "GB": "memory_gb"}  # fmt: skip


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
        described = {key: getattr(device, key) for key in ("name", "title", "kind", "target")}
        spec = {key: {"value": device.spec[key], "source": device.sources[key]} for key in devices.SPEC_FIELDS}
        listed.append({**described, "spec": spec, "data": [plain(entry) for entry in data_sets], "models": names})
        numbers = ["-" if (value := device.spec[key]) is None else f"{value:.4g}" for key in _NUMBERS.values()]
        sizes = [f"{entry.programs} programs" if entry.programs else entry.folder.name for entry in data_sets]
        shown.append((device.name, device.kind, device.title, *numbers, ", ".join(sizes), ", ".join(names)))
    if options.json:
        print_json(listed)
        return
    headings = ("name", "kind", "what it is", *_NUMBERS, "data", "model")
    print_table("Devices", headings, shown, right=_NUMBERS, caption="- : not published")

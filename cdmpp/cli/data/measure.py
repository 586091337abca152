"""``cdmpp data measure``: time tensor programs or operators on this machine. All settings: ``conf/measure.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import print_json

from cdmpp.cli.hydra_entry import entry
from cdmpp.data.codes import derive_codes
from cdmpp.measure.again import Repeater, Reviser
from cdmpp.measure.collector import Collector
from cdmpp.measure.fleet.client import FleetClient
from cdmpp.measure.kit.builder import KitBuilder
from cdmpp.measure.kit.merge import merge_kit
from cdmpp.measure.settings import MeasureSettings
from cdmpp.recipes.compose import offer

offer(MeasureSettings, "measure_settings")


@entry("measure")
def main(values: dict[str, Any]) -> None:
    """Measure as ``conf/measure.yaml`` and the command line say; prints a report as JSON."""
    settings = MeasureSettings.from_dict(values)
    folder, kit = settings.data_folder, settings.parts_folder
    if settings.kit == "build":
        report = KitBuilder(settings, kit).run()
    elif settings.devices is not None:
        report = FleetClient(settings, folder).run()
    elif settings.kit == "merge":
        report = merge_kit(kit, sorted(kit.glob("results/results-*.jsonl")), folder, settings.force)
    else:
        report = _measured(settings, folder)
    compiled = settings.target["kind"] == "llvm" and settings.runtime == "tvm"
    if settings.codes and settings.kit in (None, "merge") and compiled:
        report["code_vectors"] = derive_codes(folder, settings.builders)
    print_json(data=report)


def _measured(settings: MeasureSettings, folder: Path) -> dict[str, Any]:
    collector: type[Collector] = Collector
    repeater: type[Repeater] = Repeater
    reviser: type[Reviser] = Reviser
    if settings.runtime == "torch":  # imported here: measuring programs needs no torch
        from cdmpp.measure.torch_collector import TorchCollector, TorchRepeater, TorchReviser

        collector, repeater, reviser = TorchCollector, TorchRepeater, TorchReviser
    if settings.repeat:
        return repeater(settings, folder, settings.repeat).run()
    if settings.revise:
        return reviser(settings, folder, settings.revise).run()
    return collector(settings, folder).run()

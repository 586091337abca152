"""Measure tensor programs on this machine: ``cdmpp measure device=xeon-icelake out=datasets/mine``."""

from __future__ import annotations

from typing import Any

from rich import print_json

from cdmpp.cli.hydra_entry import entry
from cdmpp.data.codes import derive_codes
from cdmpp.measure.again import Repeater, Reviser
from cdmpp.measure.collector import Collector
from cdmpp.measure.kit.builder import KitBuilder
from cdmpp.measure.kit.merge import merge_kit
from cdmpp.measure.settings import MeasureSettings
from cdmpp.recipes.compose import offer

offer(MeasureSettings, "measure_settings")


@entry("measure")
def main(values: dict[str, Any]) -> None:
    """What ``conf/measure.yaml`` and the command line ask for; prints a report as JSON."""
    settings = MeasureSettings.from_dict(values)
    folder, kit = settings.data_folder, settings.parts_folder
    if settings.kit == "build":
        report = KitBuilder(settings, kit).run()
    elif settings.kit == "merge":
        report = merge_kit(kit, sorted(kit.glob("results/results-*.jsonl")), folder)
    elif settings.repeat:
        report = Repeater(settings, folder, settings.repeat).run()
    elif settings.revise:
        report = Reviser(settings, folder, settings.revise).run()
    else:
        report = Collector(settings, folder).run()
    if settings.codes and settings.kit in (None, "merge") and settings.target["kind"] == "llvm":
        report["code_vectors"] = derive_codes(folder, settings.builders)
    print_json(data=report)

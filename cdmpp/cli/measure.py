"""Measure tensor programs on this machine: ``python scripts/measure.py device=xeon-icelake out=datasets/mine``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import print_json

from cdmpp.cli.hydra_entry import entry
from cdmpp.data.codes import derive_codes
from cdmpp.measure.collector import Collector
from cdmpp.measure.kit.builder import KitBuilder
from cdmpp.measure.kit.merge import merge_kit, run_parts
from cdmpp.measure.repeats import Repeater
from cdmpp.measure.revisions import Reviser
from cdmpp.measure.settings import collect_settings


@entry("profile")
def main(values: dict[str, Any]) -> None:
    settings, folder, kit = collect_settings(values), Path(values["out"]), Path(values["kit_folder"])
    if values["kit"] == "build":
        report = KitBuilder(settings, kit).run()
    elif values["kit"] == "run":
        report = run_parts(kit)
    elif values["kit"] == "merge":
        report = merge_kit(kit, sorted(kit.glob("results/results-*.jsonl")), folder)
    elif values["repeat"]:
        report = Repeater(settings, folder, values["repeat"]).run()
    elif values["revise"]:
        report = Reviser(settings, folder, values["revise"]).run()
    else:
        report = Collector(settings, folder).run()
    if values["codes"] and values["kit"] in (None, "merge") and settings.target["kind"] == "llvm":
        report["code_vectors"] = derive_codes(folder, settings.builders)
    print_json(data=report)

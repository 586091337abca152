"""Measure tensor programs on this machine: ``python scripts/profile.py device=xeon-icelake out=datasets/mine``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.entry import entry  # isort: skip  (first: it puts the module path right)
from rich import print_json

from cdmpp.measure.collector import Collector
from cdmpp.measure.repeats import Repeater
from cdmpp.measure.settings import collect_settings


@entry("profile")
def main(values: dict[str, Any]) -> None:
    settings, folder = collect_settings(values), Path(values["out"])
    again = values["repeat"]
    print_json(data=(Repeater(settings, folder, again) if again else Collector(settings, folder)).run())


if __name__ == "__main__":
    main()

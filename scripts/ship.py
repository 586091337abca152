"""Put an evaluated model into the package: ``python scripts/ship.py device=xeon-icelake``. See ``conf/ship.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.entry import entry  # isort: skip  (first: it puts the module path right)
from cdmpp.data.records import read_records
from cdmpp.data.sources import data_folders
from cdmpp.evaluation.cell import Cell
from cdmpp.evaluation.noise import noise_floor
from cdmpp.evaluation.shipping import ship


@entry("ship")
def main(values: dict[str, Any]) -> None:
    device = values["device"]["name"]
    folders = data_folders(device, [Path(path).expanduser() for path in values["data"]["path"]])
    noise = noise_floor(record for folder in folders for record in read_records(folder, device))
    dataset, cell = values["dataset"] or device, Cell.parse(values["cell"])
    print(ship(Path(values["out"]), dataset, cell, values["name"] or device, noise))


if __name__ == "__main__":
    main()

"""Put an evaluated model into the package: ``python scripts/ship.py device=xeon-icelake``. See ``conf/ship.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.cli.hydra_entry import entry  # isort: skip  (first: it puts the module path right)
from benchmarks.publish.shipping import devices_of, ship
from cdmpp.data.records import read_records
from cdmpp.data.sources import data_folders
from cdmpp.evaluation.cell import Cell
from cdmpp.evaluation.noise import noise_floor


@entry("ship")
def main(values: dict[str, Any]) -> None:
    paths = [Path(path).expanduser() for path in values["data"]["path"]]
    dataset, cell, out = values["dataset"] or values["device"]["name"], Cell.parse(values["cell"]), Path(values["out"])
    noise = {
        name: noise_floor(record for folder in data_folders(name, paths) for record in read_records(folder, name))
        for name in devices_of(out, dataset, cell)
    }
    print(ship(out, dataset, cell, values["name"] or dataset, noise))


if __name__ == "__main__":
    main()

"""What searches measured as a data set, to learn from schedules that searches really propose.

python -m benchmarks.searched dataset=benchmarks/searched/xeon-emeraldrapids [out=outputs/search]
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.search_tasks import LEARNED, named_tasks
from cdmpp import devices
from cdmpp.data.importers.programs import import_programs
from cdmpp.platform.files import read_json


def main() -> None:
    """Cells of tasks that models may learn from; those of compared tasks stay out."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    cells = [read_json(path) for path in sorted((Path(given.get("out", "outputs/search")) / "cells").glob("*.json"))]
    cells = [cell for cell in cells if cell["name"] in LEARNED]
    (device,) = {cell["device"] for cell in cells}
    tasks, target = named_tasks(device, "learned"), devices.get(device).target
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "searched.jsonl.gz"
        with gzip.open(path, "wt") as stream:
            for cell in cells:
                task = tasks[cell["name"]]
                known = {"workload": task.workload, "target": dict(target), "network": next(iter(task.networks))}
                for trace, seconds in cell["records"]:
                    line = {**known, "name": task.op_name, "trace": trace, "latency_samples_s": seconds}
                    stream.write(f"{json.dumps(line)}\n")
        print(import_programs(path, Path(given["dataset"]), device))


if __name__ == "__main__":
    main()

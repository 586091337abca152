"""From a data set folder to the last training batch: seconds and memory, for 5,000 and 50,000 stored programs.

Called as ``python benchmarks/loading.py RESULT.json PROGRAMS`` by ``run.py``. The shipped programs are written under
new ids again and again until there are enough.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import finish, peak_memory_mb

from cdmpp import devices
from cdmpp.ast.table import write_asts
from cdmpp.data.batching import ProgramTensors, TrainingBatches
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import append_records, read_records, read_tasks, write_info, write_tasks

SHIPPED = Path(__file__).resolve().parents[1] / "datasets" / "xeon-icelake"
PART = 5_000


def main() -> None:
    wanted = int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 3:  # the child: a process whose memory is that of loading alone
            load(Path(sys.argv[3]))
            return
        write(Path(folder), wanted)
        subprocess.run([sys.executable, __file__, sys.argv[1], str(wanted), folder], check=True)


def write(folder: Path, wanted: int) -> None:
    """A data set folder of ``wanted`` programs with their ASTs."""
    shipped = load_dataset(SHIPPED, progress=False)
    records = {record.record_id: record for record in read_records(SHIPPED)}
    write_info(folder, name="loading")
    write_tasks(folder, read_tasks(SHIPPED).values())
    for part, start in enumerate(range(0, wanted, PART)):
        rows = np.arange(start, min(start + PART, wanted)) % len(shipped)
        copies = [
            dataclasses.replace(records[str(shipped.record_ids[row])], record_id=f"{start + i:016x}")
            for i, row in enumerate(rows)
        ]
        append_records(folder, copies)
        path = folder / "asts" / f"part-{part:05d}.parquet"
        write_asts(path, [record.record_id for record in copies], shipped.asts.take(rows))


def load(folder: Path) -> None:
    """Time the way to the end of the first epoch's batches."""
    begin = time.perf_counter()
    data = load_dataset(folder, progress=False)
    loaded = time.perf_counter()
    device = devices.get(str(data.devices[0]))
    programs = ProgramTensors.build(data.asts, {device.name: device}, data.devices, data.latency_s)
    batches = sum(1 for _ in TrainingBatches(programs, np.arange(len(data)), 128, 0, 0, length_groups=2))
    end = time.perf_counter()
    finish(
        {
            "programs": len(data),
            "load_s": loaded - begin,
            "batches_s": end - loaded,
            "batches": batches,
            "memory_mb": peak_memory_mb(),
        }
    )


if __name__ == "__main__":
    main()

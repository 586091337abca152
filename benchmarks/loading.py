"""From a data set folder to the last training batch: seconds and memory, for 5,000 and 50,000 stored programs.

Called as ``python benchmarks/loading.py RESULT.json PROGRAMS`` by ``run.py``. The shipped programs are written under
new ids again and again until there are enough.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from timing import finish, peak_memory_mb

from cdmpp import devices
from cdmpp.ast.table import write_asts
from cdmpp.data.batching import ProgramTensors, TrainingBatches
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_tasks, record_parts, write_info, write_tasks

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
    write_info(folder, name="loading")
    write_tasks(folder, read_tasks(SHIPPED).values())
    records = pa.concat_tables([pq.read_table(path) for path in record_parts(SHIPPED)])
    places = {str(name): place for place, name in enumerate(records.column("record_id").to_pylist())}
    rows = np.arange(min(PART, wanted)) % len(shipped)
    scratch = folder / "block.parquet"
    write_asts(scratch, [str(row) for row in range(len(rows))], shipped.asts.take(rows), effort=1)
    blocks = {
        "records": records.take([places[str(shipped.record_ids[row])] for row in rows]),
        "asts": pq.read_table(scratch),
    }
    scratch.unlink()
    for part, start in enumerate(range(0, wanted, PART)):
        ids = pa.array([f"{start + i:016x}" for i in range(min(PART, wanted - start))])
        for name, block in blocks.items():
            table = block.slice(0, len(ids)).set_column(block.column_names.index("record_id"), "record_id", ids)
            path = folder / name / f"part-{part:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=False)


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

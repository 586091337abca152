"""Import of up to a million tuning records: uninterrupted, and killed in the middle and run again.

Called as ``python benchmarks/importing.py RESULT.json RECORDS`` by ``run.py``. The shipped records of a CPU are written
as a MetaSchedule database again and again, each time under a target with another tag, until there are enough: real
traces and latencies, and as many identities as records.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from timing import finish

from cdmpp.data.records import read_records, read_tasks, record_parts
from cdmpp.programs.database import RECORD_FILE, WORKLOAD_FILE

DEVICE = "xeon-icelake"
SHIPPED = Path(__file__).resolve().parents[1] / "datasets" / DEVICE
TASKS = 40
"""Workloads of the database: as many as those of a network."""


def main() -> None:
    wanted = int(sys.argv[2])
    if len(sys.argv) > 3:  # a child: what this process holds would count as memory of the imports that it starts
        write(Path(sys.argv[3]), wanted)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run([sys.executable, __file__, sys.argv[1], sys.argv[2], folder / "database"], check=True)
        whole, killed = (folder / name / "many" for name in ("whole", "killed"))
        took = imported(folder / "database", whole)
        stopped = imported(folder / "database", killed, len(record_parts(whole)) // 2)
        there = len(record_parts(killed))
        resumed = imported(folder / "database", killed)
        finish(
            {
                "records": wanted, "database_mb": (folder / "database" / RECORD_FILE).stat().st_size / 1e6,
                "stored_mb": sum(path.stat().st_size for path in record_parts(whole)) / 1e6,
                "whole": took, "killed": stopped, "resumed": resumed, "parts": len(record_parts(whole)),
                "parts_at_kill": there, "equal": contents(killed) == contents(whole),
            }
        )  # fmt: skip


def write(folder: Path, wanted: int) -> None:
    """A database of ``wanted`` records, in the files and the form that MetaSchedule writes."""
    import tvm

    from cdmpp.programs.replay import parse_workload

    folder.mkdir()
    tasks = dict(islice(sorted(read_tasks(SHIPPED).items()), TASKS))
    records = [record for record in read_records(SHIPPED) if record.task_id in tasks]
    place = {task_id: number for number, task_id in enumerate(tasks)}
    with (folder / WORKLOAD_FILE).open("w") as file:
        for task in tasks.values():
            graph = tvm.ir.save_json(parse_workload(task.workload)).encode()
            packed = base64.b64encode(struct.pack("<Q", len(graph)) + graph).decode()
            file.write(json.dumps([task.task_id, packed]) + "\n")
    with (folder / RECORD_FILE).open("w") as file:
        lines = (
            f"[{place[record.task_id]},[{record.schedule},{json.dumps(record.latency_samples_s)},"
            f"{json.dumps({**json.loads(record.target), 'tag': f'copy-{copy}'})},[]]]\n"
            for copy in range(-(-wanted // len(records)))
            for record in records
        )
        file.writelines(islice(lines, wanted))


def imported(database: Path, out: Path, parts: int | None = None) -> dict[str, Any]:
    """Run ``cdmpp data import``, until it has written ``parts`` where given; what it took, by all its processes."""
    command = [str(Path(sys.executable).with_name("cdmpp")), "data", "import", "source=metaschedule"]
    words = [f"path={database}", f"device={DEVICE}", "network=several", f"out={out}"]
    begin = time.perf_counter()
    process = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, start_new_session=True)
    while parts is not None and process.poll() is None and len(record_parts(out)) < parts:
        time.sleep(0.1)
    if parts is not None:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != (0 if parts is None else -signal.SIGKILL):
        sys.exit(f"the import ended with {process.returncode}")
    seconds = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.perf_counter() - begin}
    return {**seconds, "memory_mb": used.ru_maxrss / 1e3}


def contents(folder: Path) -> dict[str, str]:
    """A hash of each file of a data set, by name."""
    paths = [*record_parts(folder), folder / "tasks.parquet", folder / "dataset.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


if __name__ == "__main__":
    main()

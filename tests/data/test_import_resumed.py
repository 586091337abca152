"""An import of many records that is killed in the middle goes on: nothing lost, nothing doubled, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cdmpp.data.importers.databases import PART_SIZE
from cdmpp.data.records import read_records, record_parts

RECORDS, TASKS = 24_000, 60
SCRIPT = """
import json, sys
from pathlib import Path
from cdmpp.data.importers.databases import write_programs
from cdmpp.data.importers.report import ImportReport
from cdmpp.data.schema import Record
from cdmpp.programs.task import Task

out, records, tasks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = [Task(f"{number:016x}", f"op{number}", "matmul", f"text {number}", 1.0, 1.0, {"net": 1}, "torch")
         for number in range(tasks)]
owners, found = [], []
for number in range(records):
    own = known[number % tasks]
    latency_s = 1e-6 * (1 + number * 7919 % 10007)
    owners.append(own)
    found.append(Record(
        record_id="", task_id=own.task_id, device="a100", target="{}", schedule=json.dumps([[number], []]),
        latency_samples_s=(latency_s, 1.1 * latency_s), latency_s=latency_s, statistic="median",
    ))
report = ImportReport()
print("starts", flush=True)
write_programs(out, "a100", owners, found, report, "many", "net", False)
print(json.dumps({"present": report.present, "written": report.written}))
"""


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), str(RECORDS), str(TASKS)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(out: Path) -> dict[str, int]:
    told, _ = (importing := start(out)).communicate(timeout=500)
    assert importing.returncode == 0
    return json.loads(told.splitlines()[-1])


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [*record_parts(out), out / "tasks.parquet", out / "dataset.json"]}


def test_a_killed_import_ends_as_one_that_was_let_run(tmp_path):
    whole, out = (tmp_path / name / "many" for name in ("whole", "killed"))
    assert finished(whole) == {"present": 0, "written": RECORDS}
    importing = start(out)
    while len(record_parts(out)) < 4 and importing.poll() is None:
        time.sleep(0.005)
    importing.send_signal(signal.SIGKILL)
    assert importing.wait() == -signal.SIGKILL
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in record_parts(out)}
    done = len(before) * PART_SIZE
    assert 4 * PART_SIZE <= done < RECORDS and len(read_records(out)) == done
    assert finished(out) == {"present": done, "written": RECORDS - done}
    assert all((path.read_bytes(), path.stat().st_mtime_ns) == one for path, one in before.items())
    assert contents(out) == contents(whole)
    ids = [one.record_id for one in read_records(out)]
    assert len(ids) == len(set(ids)) == RECORDS
    assert finished(out) == {"present": RECORDS, "written": 0} and contents(out) == contents(whole)

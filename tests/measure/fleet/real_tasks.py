"""Small tasks of several sizes with schedules made by hand, in a data set that a fleet takes them from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.data.records import append_records, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.measure import reference_kernels
from cdmpp.measure.settings import MeasureSettings
from cdmpp.programs.task import Task
from tests.measure.tiny_task import MATMUL

DEVICE = "xeon-icelake-avx2"
SIZES = range(32, 72, 8)
PROGRAMS = 3 * len(SIZES)


def write_source(folder: Path) -> None:
    """Write a data set of one task a size, each with three schedules."""
    import tvm

    from cdmpp.programs.replay import parse_workload
    from cdmpp.programs.sampling import trace_json

    tasks, records = [], []
    for size in SIZES:
        text = MATMUL.replace("64", str(size))
        tasks.append(Task(f"{size:016x}", "matmul", "matmul", text, 2.0 * size**3, 12.0 * size**2, {"tiny": 1}, "test"))
        for axis in range(3):
            schedule = tvm.s_tir.Schedule(parse_workload(text), debug_mask="none")
            schedule.split(schedule.get_loops(schedule.get_sblock("C"))[axis], [None, 4])
            record_id = f"{size:015x}{axis}"
            program = Record(record_id, tasks[-1].task_id, "epyc-9005", "{}", trace_json(schedule), (1e-3,), 1e-3)
            records.append(program)
    write_info(folder, name=folder.name, devices=["epyc-9005"])
    write_tasks(folder, tasks)
    append_records(folder, records)


def shrink_reference_kernels() -> None:
    """Keep the small one, and find every moment quiet: the machine of the tests never is."""
    reference_kernels.WORKLOADS = {"compute": reference_kernels.WORKLOADS["compute"]}
    reference_kernels.TOLERANCE = {"compute": 1e3}


def settings(tracker: str, source: Path, out: Path, **changes: Any) -> MeasureSettings:
    """Measure them on the servers of key ``board``."""
    given = {"devices": [f"board:{DEVICE}"], "runner": "rpc", "tracker": tracker, "schedules_from": source, "out": out}
    given |= {"schedules_per_task": 3, "batch": 3, "builders": 1, "min_separation_s": 0.0, "progress": False}
    return MeasureSettings(device=DEVICE, **{**given, "force": True, **changes})

"""The best measured schedule of each task in a MetaSchedule tuning database."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from cdmpp.data.targets import disagreement
from cdmpp.devices import Device
from cdmpp.errors import DataError
from cdmpp.programs.database import BadLine, read_lines, read_workloads
from cdmpp.programs.identity import task_id


def best_schedules(folder: Path, wanted: Set[str], device: Device) -> dict[str, str]:
    """Return the trace (JSON) of the fastest record of each task of ``wanted`` that has one, by task id.

    Raises:
        DataError: no database, or none of its records is of these tasks.
    """
    workloads = {
        index: key
        for index, module in enumerate(read_workloads(folder))
        if not isinstance(module, BadLine) and (key := task_id(module)) in wanted
    }
    best: dict[str, tuple[float, str]] = {}
    other, records = "", 0
    for line in read_lines(folder):
        if isinstance(line, BadLine):
            continue
        records += 1
        if line.workload not in workloads or not line.measured or line.failed:
            continue
        if reason := disagreement(device, line.target):
            other = reason
            continue
        seconds, key = min(line.seconds), workloads[line.workload]
        if key not in best or seconds < best[key][0]:
            best[key] = seconds, line.schedule
    if not best:
        why = other or f"{len(workloads)} of {len(wanted)} kernels of this network are among its workloads"
        raise DataError(
            f"{folder}: none of its {records} records is of a kernel of this network on {device.name} ({why}); tune "
            "the network, or use schedule best_of:16"
        )
    return {key: schedule for key, (_, schedule) in best.items()}

"""Errors of an evaluated cell of library operators by device, type and class: a Markdown table.

python -m benchmarks.library_types CELL DATA [DEVICE ...]: CELL is the ``.npz`` of predictions that
``cdmpp model evaluate`` leaves under ``cells``,
DATA holds the data sets it was evaluated on, ``DEVICE-torch`` of each device (h100, h200).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cdmpp.data.records import read_records, read_tasks
from cdmpp.operators.operator import EagerOperator

CLASSES = ("bmm", "linear", "conv", "softmax", "layer_norm", "elementwise", "pool", "mean")


def classes_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Record -> (type, class) of a data set."""
    tasks, found = read_tasks(folder), {}
    for record in read_records(folder):
        task = tasks[record.task_id]
        operator = EagerOperator.from_json(task.op_name)
        family = operator.kind.family
        named = operator.name if operator.name in CLASSES else "pool" if task.op_class == "pool" else family
        kept = family != "elementwise" or task.op_class in ("elementwise", "pool", "reduce")
        found[record.record_id] = ("float32" if operator.dtype == "float32" else "halves"), named if kept else ""
    return found


def main(cell: str, data: str, *devices: str) -> None:
    """Print a line a device and type."""
    made = np.load(cell, allow_pickle=False)
    apes = 100 * np.abs(made["predicted_s"] / made["true_s"] - 1)
    ids = made["record_ids"].astype(str).tolist()
    print(f"| | {' | '.join(CLASSES)} | all (median) |", "|---" + "|---:" * (len(CLASSES) + 1) + "|", sep="\n")
    for device in devices or ("h100", "h200"):
        known, errors = classes_of(Path(data) / f"{device}-torch"), defaultdict[tuple[str, str], list[float]](list)
        for record, ape in zip(ids, apes.tolist(), strict=True):
            if record in known:
                of_type, of_class = known[record]
                errors[of_type, of_class].append(ape)
                errors[of_type, "all"].append(ape)
        for of_type in ("float32", "halves"):
            if every := errors[of_type, "all"]:
                means = [f"{np.mean(e):.1f}" if (e := errors[of_type, one]) else "-" for one in CLASSES]
                last = f"{np.mean(every):.1f} ({np.median(every):.1f})"
                print(f"| {device}, {of_type}, {len(every)} calls | {' | '.join(means)} | {last} |")


if __name__ == "__main__":
    main(*sys.argv[1:])

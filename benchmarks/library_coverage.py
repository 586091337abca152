"""How often 80 % intervals of calls hold, by device and class of the operator: a Markdown table.

python -m benchmarks.library_coverage CELL FOLDER [FOLDER ...]: CELL is the ``.npz`` of predictions on test programs
that ``cdmpp model evaluate`` or ``benchmarks.publish.go_on`` leaves, FOLDER each data set of them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

LEVEL, FEWEST = 0.8, 40
"""Level of the intervals; fewest calls of which a share is shown."""


def classes_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Record -> (device, class)."""
    tasks = pq.read_table(folder / "tasks.parquet", columns=["task_id", "op_class"]).to_pydict()
    of_task = dict(zip(tasks["task_id"], tasks["op_class"], strict=True))
    records = pq.read_table(folder / "records", columns=["record_id", "task_id", "device"]).to_pydict()
    columns = (records[name] for name in ("record_id", "task_id", "device"))
    return {record: (device, of_task[task]) for record, task, device in zip(*columns, strict=True)}


def main(cell: str, *folders: str) -> None:
    """Print a line a device; shares in percent, of classes with few calls none."""
    made = np.load(cell, allow_pickle=False)
    inside = (made[f"lower_{LEVEL}"] <= made["true_s"]) & (made["true_s"] <= made[f"upper_{LEVEL}"])
    known: dict[str, tuple[str, str]] = {}
    for folder in folders:
        known |= classes_of(Path(folder))
    held: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for record, is_inside in zip(made["record_ids"].astype(str).tolist(), inside.tolist(), strict=True):
        device, op_class = known[record]
        held[device, op_class].append(is_inside)
        held[device, "all"].append(is_inside)
    classes = sorted({op_class for _, op_class in held} - {"all"}) + ["all"]
    print(f"| device | {' | '.join(classes)} |", "|---" + "|---:" * len(classes) + "|", sep="\n")
    for device in sorted({device for device, _ in held}):
        shares = [held.get((device, one), []) for one in classes]
        cells = [f"{100 * np.mean(one):.0f} ({len(one):,})" if len(one) >= FEWEST else "-" for one in shares]
        print(f"| {device} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Errors on a sample of records, each task weighted as all records have it.

python -m benchmarks.task_mix OUT/cells/NAME FOLDER ...: cells of ``cdmpp model evaluate`` whose test programs are a
sample, as ``benchmarks.a100_sample`` draws it, of the data sets FOLDER; other test programs are left out.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from cdmpp.data.records import read_records
from cdmpp.errors import DataError


def weighted_mape(cell: Path, task_of: dict[str, str], counts: Counter[str]) -> float:
    """Percent, of the programs in ``task_of``, record id -> task; ``counts``: records of each task."""
    with np.load(cell, allow_pickle=False) as stored:
        names, ape = stored["record_ids"].tolist(), 100 * np.abs(stored["predicted_s"] / stored["true_s"] - 1)
    rows = [row for row, name in enumerate(names) if name in task_of]
    if not rows:
        raise DataError(f"no test program of {cell} is in the data sets: give those that its sample was drawn from")
    tasks = [task_of[names[row]] for row in rows]
    here = Counter(tasks)
    return float(np.average(ape[rows], weights=[counts[task] / here[task] for task in tasks]))


def main(cells: str, *folders: str) -> None:
    """Print the mean over seeds of each split and model."""
    task_of = {record.record_id: record.task_id for one in folders for record in read_records(Path(one))}
    counts, found = Counter(task_of.values()), defaultdict(list)
    for path in sorted(Path(cells).glob("*/*/*.npz")):
        found[path.parts[-3], path.stem].append(weighted_mape(path, task_of, counts))
    if not found:
        raise DataError(f"{cells} holds no cells: give a folder OUT/cells/NAME of `cdmpp model evaluate`")
    print(f"{len(task_of)} records of {len(counts)} tasks\n| split | model | seeds | MAPE % |\n|---|---|---:|---:|")
    for (split, model), each in found.items():
        print(f"| {split} | {model} | {len(each)} | {np.mean(each):.1f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])

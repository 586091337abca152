"""How well a model answers for a device that it never saw, by kind of program: MAPE, intervals, ranking.

python -m benchmarks.unseen_device DATA DEVICE MODEL [MODEL ...]: DATA holds measured records of DEVICE, and their code
vectors where the models read them (``cdmpp data codes``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import cdmpp
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.records import read_info
from cdmpp.data.sources import load_devices
from cdmpp.operators.operator import EagerOperator
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.programs.task import Task
from cdmpp.training.metrics import latency_metrics


def kind_of(task: Task) -> str:
    """Class of a task; of an operator its type, too."""
    if not task.op_name.startswith("{"):
        return task.op_class
    return f"{EagerOperator.from_json(task.op_name).dtype} {task.op_class}"


def line(name: str, data: LatencyDataset, predicted: np.ndarray, bounds: dict[float, tuple[np.ndarray, np.ndarray]],
         rows: np.ndarray) -> str:  # fmt: skip
    """Return the line of the table for the programs ``rows``."""
    measured = data.latency_s[rows]
    found = latency_metrics(measured, predicted[rows], data.task_ids[rows], data.devices[rows])
    bias = 100 * np.expm1(np.log(predicted[rows] / measured).mean())
    held = "".join(
        f" {level:.0%} holds {100 * ((measured >= low[rows]) & (measured <= high[rows])).mean():.0f} |"
        for level, (low, high) in sorted(bounds.items())
    )
    ranked = "-" if np.isnan(found["spearman_within_task"]) else f"{found['spearman_within_task']:.2f}"
    return f"| {name} | {len(rows)} | {found['mape']:.1f} | {found['median_ape']:.1f} | {bias:+.1f} | {ranked} |{held}"


def main(data: str, device: str, *models: str) -> None:
    """Print a table a model."""
    features = str(read_info(Path(data)).get("features", "cdmpp"))
    records = load_devices([device], (Path(data),), features=features)
    kinds = np.asarray([kind_of(records.tasks[task]) for task in records.task_ids])
    for name in models:
        model = cdmpp.load_model(name)
        predicted, bounds = predict_rows_with_intervals(model, records, np.arange(len(records)))
        print(f"{name} on {device}\n| programs | n | MAPE | median | bias | Spearman |" + " interval |" * len(bounds))
        print("|---" * (6 + len(bounds)) + "|")
        print(line("all", records, predicted, bounds, np.arange(len(records))))
        for one in sorted(set(kinds)):
            print(line(one, records, predicted, bounds, np.flatnonzero(kinds == one)))


if __name__ == "__main__":
    main(*sys.argv[1:])

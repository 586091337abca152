"""One model (``cdmpp`` or ``reference``) on at most two cores: predictions and training samples a second, memory.

Called as ``python benchmarks/model.py RESULT.json MODEL ASTS.parquet`` by ``run.py``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from timing import best_seconds, finish, peak_memory_mb

from cdmpp.ast.table import AstTable, read_asts
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import make_split
from cdmpp.evaluation.learned import train_config
from cdmpp.programs.task import Task
from cdmpp.recipes.train import train
from cdmpp.training.config import Run

DEVICE, TRAINED_ON, EPOCHS = "xeon-icelake", 1024, 3


def main() -> None:
    model = sys.argv[2]
    torch.set_num_threads(2)
    _, asts = read_asts(Path(sys.argv[3]))
    data = dataset(asts)
    split = make_split(data, "random", 0)
    with tempfile.TemporaryDirectory() as folder:
        config = train_config(model, [f"trainer.epochs={EPOCHS}"])
        fitted = train(data, split, config, Run(Path(folder), 0, False, "cpu"))
    training_memory = peak_memory_mb()
    epoch = statistics.median(row["seconds"] for row in fitted.history)
    single = asts.take([len(asts) // 2])
    many = asts.take(np.arange(512) % len(asts))
    seconds = best_seconds({"batch_512": lambda: fitted.predictor.predict(many, DEVICE)}, rounds=10)
    # The work of one program is too small to share: a second thread costs more than it gives.
    torch.set_num_threads(1)
    seconds |= best_seconds({"batch_1": lambda: fitted.predictor.predict(single, DEVICE)}, rounds=100)
    finish(
        {
            "parameters": sum(p.numel() for m in fitted.predictor.models for p in m.parameters()),
            "batch_1": 1 / seconds["batch_1"],
            "batch_512": 512 / seconds["batch_512"],
            "training": len(split.train) / epoch,
            "memory_mb": training_memory,
        }
    )


def dataset(asts: AstTable) -> LatencyDataset:
    """``TRAINED_ON`` programs with made-up labels, since only the time matters; tiny shifts make them all different."""
    table = asts.take(np.arange(TRAINED_ON) % len(asts))
    table.leaf_features[:, 0] += np.linspace(0, 0.01, len(table.leaf_features), dtype=np.float32)
    rng = np.random.default_rng(0)
    ids = np.array([f"{i:016x}" for i in range(TRAINED_ON)])
    labels = np.exp(rng.normal(-8, 1, TRAINED_ON))
    names, zeros = np.full(TRAINED_ON, DEVICE), np.zeros(TRAINED_ON)
    tasks = {"t": Task("t", "mix", "other", "", 1.0, 1.0)}
    return LatencyDataset(ids, np.full(TRAINED_ON, "t"), names, labels, zeros, table, tasks, "made up")


if __name__ == "__main__":
    main()

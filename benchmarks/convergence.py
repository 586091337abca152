"""Training time until ``cdmpp`` is as good as ``reference`` ever gets, each with its own settings on the same data.

Called as ``python benchmarks/convergence.py RESULT.json [REFERENCE_EPOCHS]`` by ``run.py``. The error is the MAPE on
the validation tasks, which chooses the epoch of both.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import accumulate
from pathlib import Path

import torch
from timing import finish

from cdmpp.data.loading import load_dataset
from cdmpp.data.splits import make_split
from cdmpp.evaluation.learned import train_config
from cdmpp.recipes.train import train
from cdmpp.training.config import Run

DEVICE, SPLIT = "xeon-icelake-avx2", "by_task+train_tasks:0.25"
SHIPPED = Path(__file__).resolve().parents[1] / "datasets" / DEVICE


def main() -> None:
    torch.set_num_threads(2)
    data = load_dataset(SHIPPED, progress=False)
    split = make_split(data, SPLIT, 0)
    epochs = [f"trainer.epochs={sys.argv[2]}"] if len(sys.argv) > 2 else []
    paths = {}
    for model, overrides in (("cdmpp", []), ("reference", epochs)):
        with tempfile.TemporaryDirectory() as folder:
            config = train_config(model, overrides)
            fitted = train(data, split, config, Run(Path(folder), 0, False, "cpu"))
        seconds = accumulate(row["seconds"] for row in fitted.history)
        paths[model] = [(at, row["val_mape"]) for at, row in zip(seconds, fitted.history, strict=True)]
    target = min(error for _, error in paths["reference"])
    finish(
        {
            "device": DEVICE,
            "split": SPLIT,
            "programs": len(split.train),
            "target_mape": target,
            "best_mape": {model: min(error for _, error in path) for model, path in paths.items()},
            "epochs": {model: len(path) for model, path in paths.items()},
            "total_s": {model: path[-1][0] for model, path in paths.items()},
            "reached_s": {model: _reached(path, target) for model, path in paths.items()},
        }
    )


def _reached(path: list[tuple[float, float]], target: float) -> float | None:
    return next((at for at, error in path if error <= target), None)


if __name__ == "__main__":
    main()

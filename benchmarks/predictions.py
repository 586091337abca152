"""Predictions a second by a shipped model, of this checkout and an older one, in turns.

Called as ``python benchmarks/predictions.py RESULT.json ASTS.parquet`` by ``run.py``; the environment variable
``CDMPP_BASELINE`` names the older checkout, with its compiled extension. Every turn is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from timing import best_seconds, finish

MODEL, TURNS = "xeon-icelake", 3
SIZES = {"batch 1": (1, 1, 200), "batch 512, one thread": (512, 1, 10), "batch 512, two threads": (512, 2, 10)}
"""Programs, threads, rounds."""
HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    """Measure both checkouts, or, where no result file is named, this one."""
    if sys.argv[1] == "-":
        one_turn(Path(sys.argv[2]))
        return
    checkouts = {"ours": HERE, "baseline": Path(os.environ["CDMPP_BASELINE"])}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(TURNS):
        for name, checkout in checkouts.items():
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            words = [sys.executable, __file__, "-", sys.argv[2]]
            told = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
            found[name].append(json.loads(told.splitlines()[-1]))
    finish({name: {size: max(turn[size] for turn in turns) for size in SIZES} for name, turns in found.items()})


def one_turn(asts: Path) -> None:
    """Print programs a second by size."""
    import torch

    import cdmpp
    from cdmpp.ast.table import read_asts

    model, table = cdmpp.load_model(MODEL), read_asts(asts)[1]
    rates = {}
    for name, (programs, threads, rounds) in SIZES.items():
        torch.set_num_threads(threads)
        given = table.take(np.arange(len(table) // 2, len(table) // 2 + programs) % len(table))
        seconds = best_seconds({name: lambda given=given: model.predict(given, MODEL)}, rounds)  # type: ignore[misc]
        rates[name] = programs / seconds[name]
    print(json.dumps(rates))


if __name__ == "__main__":
    main()

"""Training runs of the command, quiet and beside a busy neighbour, of this checkout and an older one in turns.

Called as ``python benchmarks/training_run.py RESULT.json SEED`` by ``run.py``; the environment variable
``CDMPP_BASELINE`` names the older checkout, with its compiled extension. With ``neighbour`` for the seed one epoch is
run beside a process that never sleeps: the older build takes minutes for it.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import finish

DEVICE, NEIGHBOUR, NEIGHBOUR_EPOCHS = "xeon-icelake", "neighbour", 1
HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run both checkouts in turns: with the seed that is named, or beside a ``neighbour``."""
    checkouts = {"ours": HERE, "baseline": Path(os.environ["CDMPP_BASELINE"])}
    what = sys.argv[2]
    runs = {
        name: beside_neighbour(path) if what == NEIGHBOUR else run(path, int(what)) for name, path in checkouts.items()
    }
    finish({"device": DEVICE, "what": what, **runs})


def run(checkout: Path, seed: int, *settings: str) -> dict[str, Any]:
    """One run: seconds of the whole command and of the processor, of an epoch, and the error on the test part."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment |= {"PYTHONPATH": str(checkout), "CDMPP_CACHE": str(Path(folder) / "cache")}
        words = (f"device={DEVICE}", f"seed={seed}", f"out={folder}/out", "progress=false", *settings)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "scripts/train.py", *words], cwd=checkout, env=environment, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        with (Path(folder) / "out" / "history.csv").open(newline="") as stream:
            epochs = [float(row["seconds"]) for row in csv.DictReader(stream)]
        test = json.loads((Path(folder) / "out" / "test.json").read_text())
        return {
            "wall_s": wall_s,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "epoch_s": statistics.median(epochs),
            "mape": test["metrics"]["mape"],
            "median_ape": test["metrics"]["median_ape"],
        }


def beside_neighbour(checkout: Path) -> dict[str, Any]:
    """The same of a few epochs, while another process wants a core."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return run(checkout, 0, f"trainer.epochs={NEIGHBOUR_EPOCHS}", "baselines=[]", "plots=false")
    finally:
        neighbour.kill()
        neighbour.wait()


if __name__ == "__main__":
    main()

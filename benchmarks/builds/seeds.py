"""Test errors of trainings with several seeds in both builds: is a faster training as good as before?"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.builds.build import Build
from benchmarks.builds.runs import DATASETS
from benchmarks.publish.markdown import table

TRAININGS = tuple((device, seed) for device in ("epyc-genoa", "xeon-icelake") for seed in range(3))


def trained(build: Build, device: str, seed: int) -> dict[str, Any]:
    """Train as shipped, on one thread so that a seed always gives the same figures; errors on the test part, %."""
    with tempfile.TemporaryDirectory() as folder:
        words = (f"device={device}", f"seed={seed}", f"data.path=[{DATASETS}]", f"out={folder}/out")
        subprocess.run(
            [str(build.command), "model", "train", *words, "plots=false", "progress=false", "baselines=[]"],
            check=True, capture_output=True, cwd=folder, env=build.environment(Path(folder) / "cache"),
        )  # fmt: skip
        metrics = json.loads((Path(folder) / "out" / "test.json").read_text())["metrics"]
    return {"commit": build.commit, **{name: metrics[name] for name in ("mape", "median_ape")}}


def seed_table(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row a device and seed that both builds were trained with, and their means; ``found`` by ``key``."""
    rows = []
    for device in dict.fromkeys(device for device, _ in TRAININGS):
        own = [(seed, found.get(key(device, seed), {})) for one, seed in TRAININGS if one == device]
        own = [(seed, one) for seed, one in own if {"baseline", "now"} <= one.keys()]
        rows += [[device, str(seed), *_cells([one])] for seed, one in own]
        if len(own) > 1:
            rows.append([device, "mean ± deviation", *_cells([one for _, one in own])])
    heads = ["test MAPE, today (%)", "now (%)", "median APE, today (%)", "now (%)"]
    return table(["device", "seed", *heads], rows, left=2)


def key(device: str, seed: int) -> str:
    """Name of a training in what is stored."""
    return f"{device}/{seed}"


def _cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        _spread([run[build][metric] for run in runs])
        for metric in ("mape", "median_ape")
        for build in ("baseline", "now")
    ]


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"

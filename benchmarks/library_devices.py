"""Each device left out: how well its calls are predicted by its datasheet, and by a few of its labels.

python -m benchmarks.library_devices DATA OUT [LABELS [SAMPLER]]: DATA is an import of NeuSight, OUT an evaluation
folder of which ``benchmarks.publish.ship`` has shipped a model of library operators; its models without a device lie
there. LABELS calls of each class (3) are chosen five times from those that are not for the test, at random, or by
another SAMPLER of ``cdmpp.training.sampling`` from 2,000 random ones.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import cdmpp
from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import devices_with_data, load_devices
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.candidates import candidates
from cdmpp.recipes.left_out import split_without
from cdmpp.recipes.scaled import scale_to
from cdmpp.training.sampling import choose_tasks

_DRAWS, _POOL = 5, 2000
CLASSES = {"matmul": "bmm", "dense": "linear", "conv2d": "conv", "softmax": "softmax", "norm": "layernorm",
           "elementwise": "elementwise"}  # fmt: skip
"""Class of the tasks -> as people call it."""


def errors(model: Predictor, records: LatencyDataset, rows: np.ndarray) -> dict[str, float]:
    """Class -> MAPE in percent of the programs ``rows``."""
    ape = 100 * np.abs(predict_rows(model, records, rows) / records.latency_s[rows] - 1)
    classes = records.op_classes[rows]
    return {name: float(ape[classes == one].mean()) for one, name in CLASSES.items() if (classes == one).any()}


def few_labels(
    model: Predictor, records: LatencyDataset, device: str, test: np.ndarray, labels: int, sampler: str
) -> np.ndarray:
    """(draws, classes) MAPE of ``test`` after ``labels`` calls of each class; NaN where the device has none."""
    free = np.flatnonzero((records.devices == device) & ~np.isin(records.task_ids, records.task_ids[test]))
    found = np.full((_DRAWS, len(CLASSES)), np.nan)
    for seed in range(_DRAWS):
        shuffled = np.random.default_rng(seed).permutation(free)
        classes = records.op_classes[shuffled]
        rows = np.sort(
            np.concatenate(
                [chosen(model, records, device, shuffled[classes == one], labels, sampler, seed) for one in CLASSES]
            )
        )
        scaled, _ = scale_to(model, devices.get(device), records, rows)
        of_class = errors(scaled, records, test)
        found[seed] = [of_class.get(name, np.nan) for name in CLASSES.values()]
    return found


def chosen(
    model: Predictor, records: LatencyDataset, device: str, rows: np.ndarray, labels: int, sampler: str, seed: int
) -> np.ndarray:
    """At most ``labels`` of the shuffled ``rows`` (n,), all of one class."""
    if sampler == "random" or len(rows) <= labels:
        return rows[:labels]
    pool = rows[:_POOL]
    seen = candidates(model, records, pool, devices.get(device), seed, unsure=sampler == "diverse")
    tasks = choose_tasks(sampler, seen, labels, seed)
    return pool[np.isin(records.task_ids[pool], tasks)]


def main(data: str, out: str, labels: str = "3", sampler: str = "random") -> None:
    """Print a line for each device whose model is there, then the means."""
    names = sorted(devices_with_data([Path(data)], "library"))
    records = load_devices(names, (Path(data),), features="library")
    every: dict[str, list[tuple[float, float]]] = defaultdict(list)
    print(
        f"MAPE %, datasheet alone > with {labels} labels a class ({sampler})\n| device | "
        + " | ".join(CLASSES.values())
        + " |"
    )
    print("|---" * (1 + len(CLASSES)) + "|")
    folders = {device: Path(out) / "left_out" / f"without-{device}" / "model" for device in names}
    for device in [name for name in names if folders[name].is_dir()]:
        split = split_without(records, [device], [name for name in names if name != device], 0)
        model = cdmpp.load_model(str(folders[device]))
        before = errors(model, records, split.test)
        after = few_labels(model, records, device, split.test, int(labels), sampler).mean(0)
        cells = []
        for name, error in zip(CLASSES.values(), after.tolist(), strict=True):
            cells.append(f"{before[name]:.1f} > {error:.1f}" if name in before else "-")
            if name in before:
                every[name].append((before[name], error))
        print(f"| {device} | " + " | ".join(cells) + " |", flush=True)
    means = {name: np.mean(pairs, axis=0).tolist() for name, pairs in every.items()}
    print("| mean | " + " | ".join(f"{means[n][0]:.1f} > {means[n][1]:.1f}" for n in CLASSES.values()) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How well few candidates of a task are chosen by their ASTs, for ``docs/results/networks.md``.

``python -m benchmarks.publish.ranking`` asks the shipped model about the test part of its own records, and writes the
table between ``<!-- ranking -->`` and ``<!-- /ranking -->``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import cdmpp
from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import replace_part, table
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_devices
from cdmpp.data.splits import make_split
from cdmpp.network.compiled.choice import worth_compiling

FEWEST, MOST = 6, 4
"""Programs of a task that counts; programs that are compiled at most, as for ``best_of:16``."""


def tasks_of(dataset: LatencyDataset) -> Iterator[np.ndarray]:
    """Places of the programs of each task on each device, where there are at least ``FEWEST``."""
    _, which = np.unique(np.stack([dataset.devices, dataset.task_ids]).astype(str), axis=1, return_inverse=True)
    for number in range(which.max() + 1):
        if len(own := np.flatnonzero(which == number)) >= FEWEST:
            yield own


def figures(dataset: LatencyDataset, chances: np.ndarray) -> tuple[int, list[str]]:
    """Tasks, and means over them: Spearman, best among the 1, 2 and 4 likeliest, how many are compiled, their best."""
    rows = []
    for own in tasks_of(dataset):
        latency, order = dataset.latency_s[own], np.argsort(-chances[own])
        kept = worth_compiling(chances[own], MOST)
        best = [latency[order[:n]].min() / latency.min() for n in (1, 2, 4)]
        rank = spearmanr(-chances[own], latency).statistic if np.ptp(chances[own]) else 0.0
        rows.append([rank, *best, len(kept), latency[kept].min() / latency.min()])
    means = np.mean(rows, axis=0)
    return len(rows), [f"{mean:.{digits}f}" for mean, digits in zip(means, (2, 2, 2, 2, 1, 2), strict=True)]


def main(model: str, split: str, seed: int, docs: str) -> None:
    """Ask ``model`` with its ranker and without, on the test part of ``split`` over all its devices."""
    predictor = cdmpp.load_model(model)
    names = sorted(predictor.trained_on)
    whole = load_devices(names, (Path("datasets"),))
    dataset = whole.take(make_split(whole, split, seed).test)
    lines, n_tasks = [], 0
    for title, ranker in (("predictions without machine code", None), ("these and the ranker", predictor.ranker)):
        predictor.ranker = ranker
        chances = np.empty(len(dataset.devices))
        for name in names:
            own = np.flatnonzero(dataset.devices == name)
            chances[own] = predictor.chances(dataset.asts.take(own), name, dataset.task_ids[own])
        n_tasks, told = figures(dataset, chances)
        lines.append([title, *told])
    heads = ["chosen by", "Spearman", "likeliest", "2 likeliest", "4 likeliest", "compiled", "best of these"]
    text = [
        f"Latency of the best chosen program over that of the best of all 6 to 16, mean over {n_tasks} tasks of",
        f"networks that `{model}` never saw (split {split}, seed {seed}, {len(names)} devices):",
        "",
        *table(heads, lines),
    ]
    replace_part(Path(docs) / "results" / "networks.md", "ranking", "\n".join(text))


if __name__ == "__main__":
    run(main, model="cpus", split="held_out", seed=0, docs="docs")

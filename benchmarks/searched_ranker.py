"""Whether schedules that searches proposed teach a ranker to choose among such schedules.

    python -m benchmarks.searched_ranker [searched=benchmarks/searched/xeon-emeraldrapids] [seed=0]

``searched`` is what ``benchmarks.searched`` wrote. Of its tasks each half is judged by a ranker that learned from the
records of all CPUs and, or not, from the searches of the other half. Prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.publish.markdown import table
from benchmarks.search_tasks import DATASETS
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.loading import load_programs
from cdmpp.data.records import read_records
from cdmpp.data.splits import make_split
from cdmpp.devices import sheets_of
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import Ranker
from cdmpp.training.ranking import fit_ranker

HERE = Path(__file__).resolve().parent
TOP = (1, 4, 16)


def main() -> None:
    """Fit four rankers and print what they say of tasks that they did not learn from."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    searched, seed = Path(given.get("searched", HERE / "searched" / "xeon-emeraldrapids")), int(given.get("seed", 0))
    folders = [path for path in sorted(DATASETS.iterdir()) if (path / "dataset.json").is_file()]
    dataset = load_programs([*folders, searched])
    known = {(record.record_id, record.device) for record in read_records(searched)}
    ids, names = np.asarray(dataset.record_ids).astype(str), np.asarray(dataset.devices).astype(str)
    proposed = np.array([pair in known for pair in zip(ids, names, strict=True)])
    train = np.asarray(make_split(dataset, "held_out", seed).train)
    train = train[~proposed[train]]
    tasks = np.asarray(dataset.task_ids).astype(str)
    halves = np.array_split(np.random.default_rng(seed).permutation(np.unique(tasks[proposed])), 2)
    figures: dict[str, list[list[float]]] = {"records alone": [], "records and searches of other tasks": []}
    for judged, other in (halves, halves[::-1]):
        more = np.flatnonzero(proposed & np.isin(tasks, other))
        for title, rows in zip(figures, (train, np.concatenate([train, more])), strict=True):
            ranker = fit_ranker(dataset, rows, seed)
            assert ranker is not None
            figures[title] += [_figures(dataset, np.flatnonzero(proposed & (tasks == one)), ranker) for one in judged]
    heads = ["learned from", "tasks", "Spearman", *(f"best of top {k} over best" for k in TOP)]
    lines = [
        [title, str(len(rows)), *(f"{mean:.2f}" for mean in np.mean(rows, axis=0))] for title, rows in figures.items()
    ]
    print("\n".join(table(heads, lines)))


def _figures(dataset: LatencyDataset, rows: Sequence[int] | np.ndarray, ranker: Ranker) -> list[float]:
    names = [str(name) for name in np.asarray(dataset.devices)[rows]]
    sheets = sheets_of(np.array(names))
    columns = with_devices(dataset.asts.take(np.asarray(rows)), [sheets[name] for name in names])
    with torch.inference_mode():
        scores = ranker(torch.from_numpy(columns)).numpy()
    latency_s, order = np.asarray(dataset.latency_s)[rows], np.argsort(-scores)
    best = [float(latency_s[order[:k]].min() / latency_s.min()) for k in TOP]
    return [float(spearmanr(-scores, latency_s).statistic), *best]


if __name__ == "__main__":
    main()

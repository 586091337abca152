"""Choice of the tasks of a device to measure: K of those at hand, by their programs and without any label."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from cdmpp.errors import DataError

KMEANS_STARTS = 4


@dataclass(frozen=True)
class Candidates:
    """Tasks may be chosen from these programs, without any label."""

    features: np.ndarray
    """(n, d) float, columns on one scale."""
    task_ids: np.ndarray
    uncertainty: np.ndarray | None = None
    """(n,) how unsure the model is of each, in units of log-latency; None: not known."""
    weights: dict[str, float] | None = None
    """Call sites of each task in the networks it comes from; 1 where absent."""


def choose_tasks(sampler: str, candidates: Candidates, k: int, seed: int) -> tuple[str, ...]:
    """Choose ``k`` distinct task ids by one of ``SAMPLERS``, the most valuable first; the same for the same seed.

    Raises:
        DataError: unknown sampler, or fewer than ``k`` tasks.
    """
    check_sampler(sampler)
    available = len(np.unique(candidates.task_ids))
    if not 1 <= k <= available:
        raise DataError(f"budget={k}: there are {available} tasks to choose from; ask for 1 to {available}")
    return tuple(str(task) for task in SAMPLERS[sampler](candidates, k, seed))


def check_sampler(sampler: str) -> None:
    """Raise a ``DataError`` with the nearest name where there is no such sampler."""
    if sampler not in SAMPLERS:
        near = difflib.get_close_matches(sampler, SAMPLERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise DataError(f"unknown sampler {sampler!r}; {hint}known: {', '.join(SAMPLERS)}")


def random_tasks(candidates: Candidates, k: int, seed: int) -> list[str]:
    """Choose every task as likely as any other; a smaller budget of the same seed begins a larger one."""
    return list(np.random.default_rng(seed).permutation(np.unique(candidates.task_ids))[:k])


def kmeans_tasks(candidates: Candidates, k: int, seed: int, most_programs: bool = False) -> list[str]:
    """Choose as published (CDMPP, section on cross-device fine-tuning; Algorithm 1).

    From the largest of k clusters on, each takes the task not yet taken whose programs lie nearest to its centre on
    average, often one of a single program; with ``most_programs`` (ours) the one with most of its programs there.
    """
    names, tasks = np.unique(candidates.task_ids, return_inverse=True)
    x = np.ascontiguousarray(candidates.features, np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct programs than clusters
        clusters = KMeans(k, random_state=seed, n_init=KMEANS_STARTS).fit(x)
    cost, programs = np.zeros((len(names), k)), np.zeros((len(names), k))
    np.add.at(cost, tasks, clusters.transform(x))
    cost /= np.bincount(tasks)[:, None]
    if most_programs:
        np.add.at(programs, (tasks, clusters.labels_), 1)
        cost = cost / (1 + cost.max()) - programs
    chosen = []
    for cluster in np.argsort(-np.bincount(clusters.labels_, minlength=k), kind="stable"):
        best = int(cost[:, cluster].argmin())
        chosen.append(names[best])
        cost[best] = np.inf
    return chosen


def diverse_tasks(candidates: Candidates, k: int, seed: int) -> list[str]:
    """Take greedily the task that leaves the least unsure work far from chosen ones (a facility-location choice).

    Each task lies at the mean of its programs, and counts by how unsure the model is of them in all and by the square
    root of its call sites. Tasks with less than half as many programs as the largest are taken last.
    """
    names, tasks = np.unique(candidates.task_ids, return_inverse=True)
    counts = np.bincount(tasks)
    places = np.zeros((len(names), candidates.features.shape[1]))
    np.add.at(places, tasks, candidates.features)
    places /= counts[:, None]
    unsure = np.ones(len(tasks)) if candidates.uncertainty is None else np.asarray(candidates.uncertainty, np.float64)
    mass = np.bincount(tasks, unsure)
    mass *= np.sqrt([(candidates.weights or {}).get(str(name), 1.0) for name in names])
    distance = cdist(places, places)
    left, small = np.full(len(names), distance.max() + 1.0), counts < counts.max() / 2
    chosen: list[int] = []
    for _ in range(k):
        gain = np.maximum(left[:, None] - distance, 0)
        value = mass @ gain
        value[chosen] = -np.inf
        value[~small & (value > -np.inf)] += value.max() + 1.0
        best = int(value.argmax())
        chosen.append(best)
        left = np.minimum(left, distance[best])
    return [names[i] for i in chosen]


SAMPLERS: dict[str, Callable[[Candidates, int, int], list[str]]] = {
    "random": random_tasks,
    "kmeans": kmeans_tasks,
    "kmeans_most": partial(kmeans_tasks, most_programs=True),
    "diverse": diverse_tasks,
}

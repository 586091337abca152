"""Measures of latency predictions: their error per program and within a task, and where the error sits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from cdmpp.ast.quantities import unscheduled
from cdmpp.ast.table import TARGET_KINDS
from cdmpp.data.dataset import LatencyDataset
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_NAMES

_LATENCY_EDGES_S = (1e-5, 2e-5, 5e-5, 2e-4, 1e-3, 1e-2)
_LATENCY_RANGES = (
    *("0: under 10 us", "1: 10 us - 20 us", "2: 20 us - 50 us", "3: 50 us - 200 us"),
    *("4: 200 us - 1 ms", "5: 1 ms - 10 ms", "6: over 10 ms"),
)
_CROWDED = 0.02
"""Lines a cycle that a set cannot hold; one program in twenty has so many."""


def latency_metrics(
    true_s: np.ndarray,
    predicted_s: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    device_names: Sequence[str] | np.ndarray,
    task_weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Compute every metric of n programs by name; ``task_weights``: call sites of each task, 1 where absent.

    Programs compete with those of the same task on the same device; such a group is a *task* in what follows. Errors
    and shares are in percent; Spearman is the mean over tasks of at least five programs. Regrets are ratios, 1.0 being
    best: time of the best of the k programs predicted fastest over the time of the task's fastest (geometric mean over
    tasks of at least two programs; ``weighted_``: ratio of weighted sums). ``task_mape`` is the mean of the tasks'
    MAPEs, ``bias_at_best`` the mean signed error at each task's measured-fastest program. NaN where no task counts.

    Raises:
        DataError: empty input, lengths that differ, or times that are not positive and finite.
    """
    true, predicted = np.asarray(true_s, np.float64), np.asarray(predicted_s, np.float64)
    tasks, on = np.asarray(task_ids), np.asarray(device_names)
    if true.ndim != 1 or not true.shape == predicted.shape == tasks.shape == on.shape:
        shapes = ", ".join(str(array.shape) for array in (true, predicted, tasks, on))
        raise DataError(f"metrics need four (n,) arrays: measured, predicted, tasks, devices; got {shapes}")
    if len(true) == 0:
        raise DataError("metrics of zero programs are not defined: the test part is empty")
    for name, values in (("measured", true), ("predicted", predicted)):
        if len(bad := np.flatnonzero(~(np.isfinite(values) & (values > 0)))):
            raise DataError(f"{len(bad)} {name} latencies are not positive numbers, the first at {bad[0]}")
    names, groups = _groups(tasks, on)
    error = (predicted - true) / true
    ape = np.abs(error)
    sizes = np.bincount(groups)
    best_at = np.lexsort((true, groups))[_starts(groups)]
    fastest = true[best_at]
    ranked = sizes >= 2
    weights = np.array([(task_weights or {}).get(str(name), 1.0) for name in names])
    top1, top8 = (_best_of_top(true, predicted, groups, k) for k in (1, 8))
    weighted_best = float((weights * fastest)[ranked].sum())
    return {
        "mape": 100 * float(ape.mean()),
        "median_ape": 100 * float(np.median(ape)),
        "p90_ape": 100 * float(np.percentile(ape, 90)),
        "within_10": 100 * float((ape <= 0.1).mean()),
        "within_20": 100 * float((ape <= 0.2).mean()),
        "spearman_within_task": _mean(_spearman(true, predicted, groups)[sizes >= 5]),
        "top1_regret": float(np.exp(_mean(np.log(top1 / fastest)[ranked]))),
        "top8_regret": float(np.exp(_mean(np.log(top8 / fastest)[ranked]))),
        "weighted_top1_regret": float((weights * top1)[ranked].sum()) / weighted_best if weighted_best else np.nan,
        "task_mape": 100 * float((np.bincount(groups, ape) / sizes).mean()),
        "bias_at_best": 100 * float(error[best_at].mean()),
    }


_WILD = 20.0
"""Programs that are off by more than all others say no more of the scale of these."""


def mape_factor(true_s: np.ndarray, predicted_s: np.ndarray) -> float:
    """Return the factor of all predictions (n,) that gives the least MAPE; below one where they miss both ways alike.

    The percentage of an over-prediction has no limit, that of an under-prediction ends at 100: whoever is unsure errs
    less by a lower answer. abs(f * predicted / true - 1) has its least mean where f is the median of true / predicted,
    weighted by predicted / true.
    """
    wanted = np.asarray(true_s, np.float64) / np.asarray(predicted_s, np.float64)
    usual = np.median(wanted)
    wanted = wanted.clip(usual / _WILD, usual * _WILD)  # else one wild prediction could set the scale of all
    order = np.argsort(wanted)
    weights = np.cumsum(1.0 / wanted[order])
    return float(wanted[order][np.searchsorted(weights, weights[-1] / 2)])


def score(dataset: LatencyDataset, test: np.ndarray, predicted_s: np.ndarray) -> dict[str, Any]:
    """Score predictions (m,) of the ``test`` programs (m,): overall, by op class, latency range and device.

    Where they are of several devices also by device and class, where some programs have no schedule also by that, and
    where they have code vectors of a CPU by whether the lines that a program uses together crowd the sets of its cache.
    Figures that are not defined for these programs are left out: JSON has no NaN.
    """
    true, tasks, names = dataset.latency_s[test], dataset.task_ids[test], dataset.devices[test]

    def by(labels: Sequence[str] | np.ndarray) -> dict[str, dict[str, float]]:
        return {label: _finite(row) for label, row in breakdown(true, predicted_s, tasks, names, labels).items()}

    on_cpu = dataset.features == "cdmpp" and bool((dataset.asts.target_kinds[test] == TARGET_KINDS.index("cpu")).all())
    codes = None if dataset.asts.codes is None or not on_cpu else dataset.asts.codes[test]
    plain = unscheduled(dataset.asts.take(test)) if dataset.features == "cdmpp" else np.zeros(len(test), bool)
    by_schedule = {"by_schedule": by(np.where(plain, "untuned", "scheduled"))} if plain.any() else {}
    crowded = {} if codes is None or np.isnan(codes).all() else {"by_sets": by(_crowded(codes))}
    pairs = [f"{name} {op_class}" for name, op_class in zip(names, dataset.op_classes[test], strict=True)]
    return {
        "n_programs": len(test),
        "n_tasks": len(np.unique(tasks)),
        "metrics": _finite(latency_metrics(true, predicted_s, tasks, names, call_sites(dataset, tasks))),
        "by_op_class": by(dataset.op_classes[test]),
        "by_latency": by(latency_range_labels(true)),
        "by_device": by(names),
        **({"by_device_and_class": by(pairs)} if len(np.unique(names)) > 1 else {}),
        **crowded,
        **by_schedule,
    }


def _crowded(codes: np.ndarray) -> np.ndarray:
    """(m,) ``crowded`` where a set of the first-level cache cannot hold what is in use together, else ``others``."""
    lines, cycles = (np.exp2(codes[:, CODE_NAMES.index(f"machine_{name}")]) - 1 for name in ("l1_conflicts", "cycles"))
    return np.where(lines > _CROWDED * cycles, "crowded", "others")


def call_sites(dataset: LatencyDataset, task_ids: np.ndarray) -> dict[str, float]:
    """Return the calls of each task in the networks that it comes from; 1 for a task without a network."""
    return {task: float(max(1, sum(dataset.tasks[task].networks.values()))) for task in np.unique(task_ids).tolist()}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def breakdown(
    true_s: np.ndarray,
    predicted_s: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    device_names: Sequence[str] | np.ndarray,
    labels: Sequence[str] | np.ndarray,
) -> dict[str, dict[str, float]]:
    """Compute metrics, ``n_programs`` and ``n_tasks`` of each group of equal ``labels`` (n,), sorted by label."""
    columns = [np.asarray(column) for column in (true_s, predicted_s, task_ids, device_names)]
    kinds, result = np.asarray(labels), {}
    for label in np.unique(kinds):
        true, predicted, tasks, names = (column[kinds == label] for column in columns)
        counts = {"n_programs": len(true), "n_tasks": len(np.unique(tasks))}
        result[str(label)] = latency_metrics(true, predicted, tasks, names) | counts
    return result


def latency_range_labels(true_s: np.ndarray) -> list[str]:
    """Name each program's latency range, e.g. ``20-50 us``, numbered so that names sort by latency."""
    return [_LATENCY_RANGES[i] for i in np.searchsorted(_LATENCY_EDGES_S, np.asarray(true_s), side="right")]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _groups(tasks: np.ndarray, device_names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The task (groups,) of each pair of task and device that occurs, and (n,) the pair of each program."""
    names, task = np.unique(tasks, return_inverse=True)
    present, device = np.unique(device_names, return_inverse=True)
    pairs, groups = np.unique(task * len(present) + device, return_inverse=True)
    return names[pairs // len(present)], groups


def _starts(groups: np.ndarray) -> np.ndarray:
    """Return the place at which each group begins, once programs are sorted by group."""
    return np.r_[0, np.cumsum(np.bincount(groups))[:-1]]


def _best_of_top(true: np.ndarray, predicted: np.ndarray, groups: np.ndarray, k: int) -> np.ndarray:
    """(groups,) fastest measured time among the k programs of each group that are predicted fastest."""
    # Equal predictions are ordered by a fixed shuffle: input order may follow the measured times.
    shuffle = np.random.default_rng(0).permutation(len(true))
    order, starts = np.lexsort((shuffle, predicted, groups)), _starts(groups)
    place = np.arange(len(order)) - starts[groups[order]]
    return np.minimum.reduceat(np.where(place < k, true[order], np.inf), starts)


def _spearman(true: np.ndarray, predicted: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(groups,) rank correlation; 0 where one side is constant, which orders nothing."""
    sizes = np.bincount(groups)
    centred = []
    for values in (true, predicted):
        distinct, place = np.unique(values, return_inverse=True)
        ranks = rankdata(groups * len(distinct) + place) - 1  # of all groups one after the other
        centred.append(ranks - (np.bincount(groups, ranks) / sizes)[groups])
    a, b = centred
    scale = np.sqrt(np.bincount(groups, a * a) * np.bincount(groups, b * b))
    return np.where(scale > 0, np.bincount(groups, a * b) / np.where(scale > 0, scale, 1.0), 0.0)

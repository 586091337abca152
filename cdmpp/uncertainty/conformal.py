"""Prediction intervals by split conformal prediction on held-out tasks; any model's log-latencies will do.

The score of a program is the residual of its log-latency over a local scale. An interval of level 1 - a is the range of
scores that a share 1 - a of the calibration programs keeps to, where every *task* weighs 1 and one more lies at
infinity: programs of a task err together, so tasks are exchangeable. A program of a new task from the same population
is inside with probability at least 1 - a. Where K tasks are too few (K / (K + 1) < 1 - a) it is (1 - a) K / (K + 1).

The two sides differ: the shape of the interval, like the local scale, is fitted on the tasks of the other folds, then
widened or narrowed as a whole. A prediction uses the mean over the folds, so the promise is exact for a fixed scale and
shape, nearly so for fitted ones.

Sources: Lei et al., JASA 2018 (split conformal, local scale); Dunn, Wasserman and Ramdas, JASA 2023, and Lee, Barber
and Willett, 2023 (groups as the exchangeable unit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.uncertainty.local_scale import LocalScale, fit_crosswise

LEVELS = (0.8, 0.9)
FITTED_TASKS = 20
"""Fewest tasks for which a shape, a local scale or bounds of a group's own are fitted."""
FOLDS = 5
_NARROWEST_SIDE = 0.1
"""Share of the width that each side has at least, so that no interval excludes its own prediction."""


@dataclass(frozen=True)
class Conformal:
    """Bounds are calibrated for G groups of programs and L rising levels.

    Groups are paths such as ``cpu/xeon-icelake``; the first, empty one is all programs. A program uses the longest
    calibrated prefix of its own path, so that a device with few tasks falls back to its kind and then to all.
    """

    levels: tuple[float, ...]
    groups: tuple[str, ...]
    n_tasks: np.ndarray
    """(G,) int64."""
    lower: np.ndarray
    """(G, L) float64 at most 0, as ``upper`` at least 0 in multiples of the local scale in log-latency."""
    upper: np.ndarray
    scale: LocalScale

    def intervals(
        self,
        log_prediction: np.ndarray,
        inputs: np.ndarray | None = None,
        groups: str | Sequence[str] | np.ndarray | None = None,
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Return (n,) lower and (n,) upper bounds in seconds by level; arguments as at ``fit_conformal``.

        ``groups`` may also be the one path of all programs.
        """
        logs, x = _with_inputs(log_prediction, inputs)
        if x.shape[1] != (width := len(self.scale.low)):
            raise DataError(f"these intervals depend on {width} inputs of a local scale, given {x.shape[1]}")
        factor = self.scale(x)[:, None]
        rows: int | np.ndarray
        if groups is None or isinstance(groups, str):
            rows = self._group(groups or "")
        else:
            paths, which = np.unique(groups, return_inverse=True)
            rows = np.array([self._group(str(path)) for path in paths])[which]
        lower, upper = (np.exp(logs[:, None] + bound[rows] * factor).T for bound in (self.lower, self.upper))
        return dict(zip(self.levels, zip(lower, upper, strict=True), strict=True))

    def _group(self, path: str) -> int:
        return _longest(self.groups, path)

    def promised(self, path: str = "") -> dict[float, float]:
        """Return by level the coverage that the tasks of the group of ``path`` can vouch for."""
        n_tasks, most, promises = int(self.n_tasks[self._group(path)]), 0.0, dict[float, float]()
        for level in self.levels:
            most = max(most, _promise(level, n_tasks))
            promises[level] = round(most, 3)
        return promises

    def describe(self) -> dict[str, dict[str, Any]]:
        """List promises for a model card by group (``all``: the empty one): its tasks, and the promise by level."""
        card = {}
        for group, n_tasks in zip(self.groups, self.n_tasks, strict=True):
            levels = {str(level): {"promised": promise} for level, promise in self.promised(group).items()}
            card[group or "all"] = {"tasks": int(n_tasks), "levels": levels}
        return card


def fit_conformal(
    log_prediction: np.ndarray,
    log_latency: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    inputs: np.ndarray | None = None,
    groups: Sequence[str] | np.ndarray | None = None,
) -> Conformal:
    """Calibrate on programs that the model has not learned from.

    Args:
        log_prediction, log_latency: (n,) natural-log seconds, predicted and measured.
        task_ids: (n,) task of each program: the unit that is exchanged.
        inputs: (n, d) what the size of the residual may depend on; None, or few tasks, keep the scale at 1.
        groups: (n,) path of each program; a group of at least ``FITTED_TASKS`` tasks gets bounds of its own.

    ``DataError``: no programs, lengths that differ, or numbers that are not finite.
    """
    (predicted, x), measured = _with_inputs(log_prediction, inputs), np.asarray(log_latency, np.float64)
    if len(lengths := {len(predicted), len(measured), len(task_ids), len(x)}) > 1 or not len(predicted):
        raise DataError(f"calibration needs programs, and arrays of one length; got lengths {sorted(lengths)}")
    residuals = measured - predicted
    if not (np.isfinite(residuals).all() and np.isfinite(x).all()):
        raise DataError("calibration needs finite log-latencies and inputs; drop programs without a label")
    # Numbers 0..K-1 in the order of the names: that of the programs decides nothing.
    tasks = np.unique(np.asarray(task_ids).astype(str), return_inverse=True)[1]
    scores, weights = residuals, 1 / np.bincount(tasks)[tasks]
    scale = LocalScale.flat(x, weights)
    if inputs is not None and tasks.max() + 1 >= FITTED_TASKS:
        scale, factors = fit_crosswise(residuals, x, weights, _folds(tasks))
        scores = residuals / factors
    members = _groups([] if groups is None else [str(group) for group in groups], tasks)
    fitted = [_bounds(scores[rows], tasks[rows]) for rows in members.values()]
    n_tasks = np.array([len(np.unique(tasks[rows])) for rows in members.values()], np.int64)
    lower, upper = np.array(fitted).transpose(1, 0, 2)
    return Conformal(LEVELS, tuple(members), n_tasks, lower, upper, scale)


def task_quantile(scores: np.ndarray, tasks: np.ndarray, share: float, at_infinity: bool = True) -> float:
    """Return the least score with ``share`` of the weight up to it; every task, and one above all, weighs 1."""
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    weights = np.append((1 / sizes)[which], float(at_infinity))
    return float(np.quantile(np.append(scores, np.inf), share - 1e-9, weights=weights, method="inverted_cdf"))


def _promise(level: float, n_tasks: int) -> float:
    return level if 1 / (n_tasks + 1) <= 1 - level + 1e-9 else level * n_tasks / (n_tasks + 1)


def _bounds(scores: np.ndarray, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(L,) lower and upper bounds of one group."""
    n_tasks, folds, bounds = len(np.unique(tasks)), _folds(tasks), []
    for level in LEVELS:
        shapes = _shapes(scores, tasks, folds, level) if n_tasks >= FITTED_TASKS else np.ones((2, FOLDS))
        down, up = shapes[:, folds]
        relative = np.where(scores < 0, -scores / down, scores / up)
        bounds.append(task_quantile(relative, tasks, _promise(level, n_tasks)) * shapes.mean(1))
    # Each level has a shape of its own; a higher one still must contain the lower ones.
    down, up = np.maximum.accumulate(bounds).T
    return -down, up


def _shapes(scores: np.ndarray, tasks: np.ndarray, folds: np.ndarray, level: float) -> np.ndarray:
    """(2, FOLDS) how far the interval reaches down and up in each fold, from the tasks of the others."""
    shapes, tail = np.empty((2, FOLDS)), (1 + level) / 2
    for fold in range(FOLDS):
        others = folds != fold
        sides = [task_quantile(sign * scores[others], tasks[others], tail, False) for sign in (-1, 1)]
        shapes[:, fold] = np.maximum(sides, max(_NARROWEST_SIDE * sum(sides), 1e-9))
    return shapes


def _folds(tasks: np.ndarray) -> np.ndarray:
    """(n,) fold of each program's task, dealt out in turn."""
    return np.unique(tasks, return_inverse=True)[1] % FOLDS


def _groups(paths: Sequence[str], tasks: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of each group that is large enough; one that is all of its parent says nothing new."""
    members, names = {"": np.arange(len(tasks))}, [_prefixes(path) for path in paths]
    for prefix in sorted({prefix for prefixes in names for prefix in prefixes[1:]}):
        rows = np.flatnonzero([prefix in prefixes for prefixes in names])
        parent = next(p for p in reversed(_prefixes(prefix)[:-1]) if p in members)
        if len(rows) < len(members[parent]) and len(np.unique(tasks[rows])) >= FITTED_TASKS:
            members[prefix] = rows
    return members


@lru_cache(maxsize=1024)
def _longest(groups: tuple[str, ...], path: str) -> int:
    """Place of the longest prefix of ``path`` among ``groups``."""
    return next(groups.index(prefix) for prefix in reversed(_prefixes(path)) if prefix in groups)


def _prefixes(path: str) -> list[str]:
    """``a/b`` -> ``["", "a", "a/b"]``."""
    words = path.split("/") if path else []
    return ["/".join(words[:n]) for n in range(len(words) + 1)]


def _with_inputs(log_prediction: np.ndarray, inputs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    logs = np.asarray(log_prediction, np.float64)
    return logs, np.zeros((len(logs), 0)) if inputs is None else np.asarray(inputs, np.float64)

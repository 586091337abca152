"""Prediction intervals by split conformal prediction on held-out tasks. numpy only; any model's log-latencies will do.

The score of a program is the residual of its log-latency over a local scale. An interval of level 1 - a is the range of
scores that a share 1 - a of the calibration programs keeps to, where every *task* weighs 1, however many programs it
has, and one more unit of weight lies at infinity: programs of a task err together, so tasks are what may be exchanged
with a new one. With K tasks a program of a new task from the same population is then inside with probability at least
1 - a; the unit at infinity makes intervals a little too wide, which is felt below some fifty tasks.

The two sides differ (slow programs are under-predicted): the shape of the interval, like the local scale, is fitted
crosswise, on the tasks of the other folds, and then widened or narrowed as a whole by the conformal quantile. A
prediction uses the mean over the folds: the promise is exact for a fixed scale and shape, nearly so for fitted ones.

Sources: Lei et al., Distribution-free predictive inference for regression, JASA 2018 (split conformal, local scale);
Dunn, Wasserman and Ramdas, Distribution-free prediction sets for two-layer hierarchical models, JASA 2023, and Lee,
Barber and Willett, Distribution-free inference with hierarchical data, 2023 (groups as the exchangeable unit).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.uncertainty.local_scale import LocalScale, fit_crosswise

LEVELS = (0.8, 0.9)
METHODS = ("signed", "symmetric", "widest")
"""``signed``: each side has its own bound. ``symmetric``: too few tasks to tell the sides apart. ``widest``: too few
for the level at all; what holds the level's share of the programs in *every* calibration task. A new task exceeds the
widest of K others with probability 1/(K+1), so this promises the level times K/(K+1), and is wide."""
SIGNED_TASKS = 20
"""Fewest tasks for which the shape, the local scale or a group of its own is fitted."""
FOLDS = 5
_NARROWEST_SIDE = 0.1
"""Share of the width that each side has at least, so that no interval excludes its own prediction."""


@dataclass(frozen=True)
class Conformal:
    """Calibrated bounds: G groups of programs, L levels.

    Groups are paths such as ``cpu/xeon-icelake``; the empty one is all programs. A program uses the longest calibrated
    prefix of its own path, so that a device with few tasks falls back to its kind and then to all.
    """

    levels: tuple[float, ...]
    """Rising."""
    groups: tuple[str, ...]
    """The first is the empty one."""
    n_tasks: np.ndarray
    """(G,) int64 calibration tasks."""
    methods: np.ndarray
    """(G, L) int64, places in ``METHODS``."""
    lower: np.ndarray
    """(G, L) float64 at most 0, multiples of the local scale in log-latency."""
    upper: np.ndarray
    """(G, L) float64 at least 0."""
    scale: LocalScale

    def interval(
        self,
        log_prediction: np.ndarray,
        inputs: np.ndarray | None = None,
        level: float = LEVELS[0],
        groups: Sequence[str] | np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the latency.

        Args:
            log_prediction: (n,) natural-log seconds.
            inputs: (n, d) of the local scale; not needed where it is constant.
            level: one of ``levels``.
            groups: (n,) path of each program, or None.

        Returns:
            (n,) lower and (n,) upper bound in seconds; the prediction lies between them.

        Raises:
            DataError: a level that was not calibrated, or no inputs for a local scale.
        """
        if level not in self.levels:
            raise DataError(f"no interval of level {level} is calibrated; there are {', '.join(map(str, self.levels))}")
        logs, place = np.asarray(log_prediction, np.float64), self.levels.index(level)
        if inputs is None and len(self.scale.coefficients):
            raise DataError("these intervals depend on inputs of the local scale, and none were given")
        factor = np.ones(len(logs)) if inputs is None else self.scale(inputs)
        rows = np.zeros(len(logs), np.int64) if groups is None else self._rows(np.asarray(groups).astype(str))
        return (
            np.exp(logs + self.lower[rows, place] * factor),
            np.exp(logs + self.upper[rows, place] * factor),
        )

    def _rows(self, groups: np.ndarray) -> np.ndarray:
        names, which = np.unique(groups, return_inverse=True)
        return np.array([self.groups.index(self._calibrated(str(name))) for name in names])[which]

    def _calibrated(self, path: str) -> str:
        return next(prefix for prefix in reversed(_prefixes(path)) if prefix in self.groups)

    def promised(self, path: str = "") -> dict[float, float]:
        """Level -> the coverage that the tasks of the group of ``path`` can vouch for, see ``METHODS``."""
        group = self.groups.index(self._calibrated(path))
        n_tasks, methods = int(self.n_tasks[group]), [METHODS[method] for method in self.methods[group]]
        return {
            level: round(level * n_tasks / (n_tasks + 1) if method == "widest" else level, 3)
            for level, method in zip(self.levels, methods, strict=True)
        }

    def describe(self) -> dict[str, dict[str, Any]]:
        """For a model card, by group (``all`` is the empty one): tasks, and by level the method and the promise."""
        return {
            group or "all": {
                "tasks": int(self.n_tasks[g]),
                "levels": {
                    str(level): {"method": METHODS[self.methods[g, i]], "promised": promised}
                    for i, (level, promised) in enumerate(self.promised(group).items())
                },
            }
            for g, group in enumerate(self.groups)
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """What ``restore`` needs, without ``settings``."""
        own = {name: getattr(self, name) for name in ("n_tasks", "methods", "lower", "upper")}
        return {**own, **{f"scale.{name}": value for name, value in self.scale.arrays().items()}}

    def settings(self) -> dict[str, list[Any]]:
        """The rest, as plain JSON."""
        return {"levels": list(self.levels), "groups": list(self.groups)}

    @staticmethod
    def restore(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Conformal:
        """Raises ``KeyError`` where a part is missing."""
        scale = {name.removeprefix("scale."): value for name, value in arrays.items() if name.startswith("scale.")}
        return Conformal(
            tuple(settings["levels"]),
            tuple(settings["groups"]),
            np.asarray(arrays["n_tasks"]),
            np.asarray(arrays["methods"]),
            np.asarray(arrays["lower"]),
            np.asarray(arrays["upper"]),
            LocalScale.from_arrays(scale),
        )


def fit_conformal(
    log_prediction: np.ndarray,
    log_latency: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    inputs: np.ndarray | None = None,
    groups: Sequence[str] | np.ndarray | None = None,
    levels: Sequence[float] = LEVELS,
) -> Conformal:
    """Calibrate on programs that the model has not learned from.

    Args:
        log_prediction: (n,) natural-log seconds.
        log_latency: (n,) measured.
        task_ids: (n,) task of each program: the unit that is exchanged.
        inputs: (n, d) what the size of the residual may depend on; None keeps the scale at 1. With fewer than
            ``SIGNED_TASKS`` tasks it stays 1 as well.
        groups: (n,) path of each program; a group of at least ``SIGNED_TASKS`` tasks gets bounds of its own.
        levels: between 0 and 1.

    Raises:
        DataError: no programs, lengths that differ, numbers that are not finite, or an impossible level.
    """
    residuals, names = _checked(log_prediction, log_latency, task_ids, inputs, levels)
    tasks = _in_hash_order(names)
    scale, scores = LocalScale.constant(), residuals
    if inputs is not None and tasks.max() + 1 >= SIGNED_TASKS:
        weights = 1 / np.bincount(tasks)[tasks]
        scale, factors = fit_crosswise(residuals, np.asarray(inputs, np.float64), weights, _folds(tasks))
        scores = residuals / factors
    rising = tuple(sorted({float(level) for level in levels}))
    members = _groups(None if groups is None else np.asarray(groups).astype(str), tasks)
    fitted = [_bounds(scores[rows], tasks[rows], rising) for rows in members.values()]
    methods, lower, upper = (np.array([bounds[i] for bounds in fitted]) for i in range(3))
    n_tasks = np.array([len(np.unique(tasks[rows])) for rows in members.values()], np.int64)
    return Conformal(rising, tuple(members), n_tasks, methods, lower, upper, scale)


def task_quantile(scores: np.ndarray, tasks: np.ndarray, share: float, at_infinity: bool = True) -> float:
    """Smallest score with at least ``share`` of the weight at or below it, every task weighing 1.

    Args:
        at_infinity: one more task's weight lies above all scores; the answer is infinite where ``share`` reaches it.
    """
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    below = np.cumsum((1 / sizes)[which][order]) / (len(sizes) + at_infinity)
    place = int(np.searchsorted(below, share - 1e-9))
    return float(scores[order[place]]) if place < len(order) else np.inf


def _bounds(
    scores: np.ndarray, tasks: np.ndarray, levels: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(L,) methods, lower and upper bounds of one group."""
    n_tasks, folds, rows = len(np.unique(tasks)), _folds(tasks), []
    for level in levels:
        if 1 / (n_tasks + 1) > 1 - level + 1e-9:
            sizes = (np.abs(scores[tasks == task]) for task in np.unique(tasks))
            reach = max(float(np.quantile(each, level, method="higher")) for each in sizes)
            rows.append((METHODS.index("widest"), -reach, reach))
            continue
        method = "signed" if n_tasks >= SIGNED_TASKS else "symmetric"
        down, up = _shapes(scores, tasks, folds, level) if method == "signed" else np.ones((2, len(scores)))
        factor = task_quantile(np.where(scores < 0, -scores / down, scores / up), tasks, level)
        rows.append((METHODS.index(method), -factor * _mean(down, folds), factor * _mean(up, folds)))
    methods, lower, upper = (np.array(column) for column in zip(*rows, strict=True))
    # A higher level may have come about in another way; it still must contain the lower ones.
    return methods, np.minimum.accumulate(lower), np.maximum.accumulate(upper)


def _shapes(scores: np.ndarray, tasks: np.ndarray, folds: np.ndarray, level: float) -> np.ndarray:
    """(2, n) how far the interval reaches down and up at each program, from the tasks of the other folds."""
    shapes, tail = np.empty((2, len(scores))), (1 + level) / 2
    for fold in np.unique(folds):
        others = folds != fold
        down, up = (task_quantile(sign * scores[others], tasks[others], tail, False) for sign in (-1, 1))
        narrowest = max(_NARROWEST_SIDE * (down + up), 1e-9)
        shapes[:, ~others] = np.maximum([[down], [up]], narrowest)
    return shapes


def _mean(values: np.ndarray, folds: np.ndarray) -> float:
    """Mean over folds of a value that is constant within each."""
    return float(np.mean([values[folds == fold][0] for fold in np.unique(folds)]))


def _in_hash_order(names: np.ndarray) -> np.ndarray:
    """(n,) tasks as numbers 0..K-1 in the order of a hash: the order of programs decides nothing."""
    tasks, which = np.unique(names, return_inverse=True)
    keys = [hashlib.blake2b(str(task).encode(), digest_size=8).digest() for task in tasks]
    places = np.empty(len(tasks), np.int64)
    places[sorted(range(len(tasks)), key=keys.__getitem__)] = np.arange(len(tasks))
    return places[which]


def _folds(tasks: np.ndarray) -> np.ndarray:
    """(n,) fold of each program's task, dealt out in turn."""
    return np.unique(tasks, return_inverse=True)[1] % FOLDS


def _groups(paths: np.ndarray | None, tasks: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of each group that is large enough; one that is all of its parent says nothing new."""
    members = {"": np.arange(len(tasks))}
    if paths is None:
        return members
    prefixes = {str(path): _prefixes(str(path)) for path in np.unique(paths)}
    for prefix in sorted({prefix for found in prefixes.values() for prefix in found[1:]}):
        rows = np.flatnonzero(np.isin(paths, [path for path, found in prefixes.items() if prefix in found]))
        parent = next(p for p in reversed(_prefixes(prefix)[:-1]) if p in members)
        if len(rows) < len(members[parent]) and len(np.unique(tasks[rows])) >= SIGNED_TASKS:
            members[prefix] = rows
    return members


def _prefixes(path: str) -> list[str]:
    """``a/b`` -> ``["", "a", "a/b"]``."""
    words = path.split("/") if path else []
    return ["/".join(words[:n]) for n in range(len(words) + 1)]


def _checked(
    log_prediction: np.ndarray,
    log_latency: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    inputs: np.ndarray | None,
    levels: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and task names."""
    predicted, measured = (np.asarray(values, np.float64) for values in (log_prediction, log_latency))
    names = np.asarray(task_ids).astype(str)
    if len(predicted) == 0:
        raise DataError("intervals need programs to be calibrated on; the validation part is empty")
    rows = len(predicted) if inputs is None else len(inputs)
    if not predicted.shape == measured.shape == names.shape or rows != len(predicted):
        raise DataError(
            f"calibration needs arrays of one length; got {predicted.shape}, {measured.shape}, {names.shape}"
            f" and inputs of {rows} programs"
        )
    if not (np.isfinite(predicted).all() and np.isfinite(measured).all()):
        raise DataError("calibration needs finite log-latencies; drop programs without a label")
    if inputs is not None and not np.isfinite(inputs).all():
        raise DataError("inputs of the local scale must be finite")
    if not levels or not all(0 < level < 1 for level in levels):
        raise DataError(f"levels must lie between 0 and 1, such as 0.8; given {list(levels)}")
    return measured - predicted, names

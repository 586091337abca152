"""Baselines that are gradient-boosted trees, on fixed-width vectors of pooled features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdmpp import devices
from cdmpp.ast.pooling import compress
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.evaluation.evaluation_data import Baseline, EvaluationData
from cdmpp.model.pooled import pooled
from cdmpp.training.metrics import mape_factor


@dataclass(frozen=True)
class TreeSettings:
    """XGBoost fits log-latency with an absolute-error objective; ``depths`` are compared on the validation part."""

    depths: tuple[int, ...] = (5, 7)
    rounds: int = 600
    threads: int = 1


_XGBOOST = {"objective": "reg:absoluteerror", "eval_metric": "mae", "tree_method": "hist", "max_bin": 128,
            "early_stopping_rounds": 50, "learning_rate": 0.06, "subsample": 0.8, "colsample_bytree": 0.4,
            "min_child_weight": 3.0}  # fmt: skip


@dataclass
class Trees:
    """Gradient-boosted trees read a fixed-width vector per program; with ``base`` they fit the ratio to it."""

    features: Callable[[EvaluationData], np.ndarray]
    settings: TreeSettings
    base: Baseline | None = None

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Fit ``split.train`` with each depth; ``split.validation`` ends the rounds and chooses."""
        from xgboost import XGBRegressor

        x, y = self.features(data), np.log(data.dataset.latency_s)
        if self.base:
            self.base.fit(data, split, seed)
            y = y - np.log(self.base.predict(data, np.arange(len(y))))
        # Many columns never vary on one kind of device; searching them takes time and finds nothing.
        # A program that was not compiled has no numbers of its code: that alone must not cost the others theirs.
        self.columns = np.flatnonzero(np.nanmax(x[split.train], axis=0) > np.nanmin(x[split.train], axis=0))
        x = x[:, self.columns]
        # Trees take the first split at the base score; centring keeps it near the data.
        self.centre, chosen = float(np.median(y[split.train])), self.settings
        best = np.inf
        for depth in chosen.depths:
            own = {"max_depth": depth, "n_estimators": chosen.rounds, "random_state": seed, "n_jobs": chosen.threads}
            model = XGBRegressor(**_XGBOOST, **own)
            held_out = [(x[split.validation], y[split.validation] - self.centre)]
            model.fit(x[split.train], y[split.train] - self.centre, eval_set=held_out, verbose=False)
            if model.best_score < best:
                best, self.model = model.best_score, model
        # As our own models do, see ``Predictor.log_shift``: the comparison is of models, not of what is asked of them.
        predicted = np.exp(self.model.predict(x[split.validation]).astype(np.float64) + self.centre)
        self.factor = mape_factor(np.exp(y[split.validation]), predicted)

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        x = self.features(data)[indices][:, self.columns]
        ratio = self.factor * np.exp(self.model.predict(x).astype(np.float64) + self.centre)
        return ratio * self.base.predict(data, indices) if self.base else ratio


def per_store_pooled(data: EvaluationData) -> np.ndarray:
    """Return (n, 657): sum, maximum, busiest store, log of the linear sum, count."""
    if data.per_store is None:
        raise DataError(
            "this baseline needs TVM's per-store features, and they are not derived for this data set: run "
            "`cdmpp model evaluate` where TVM is installed, or take it out of models"
        )
    return _with_devices(data.per_store, data.dataset)


def ours_pooled(data: EvaluationData) -> np.ndarray:
    """Pool compact ASTs, and add the task's arithmetic and bytes."""
    dataset, asts = data.dataset, data.dataset.asts
    size = np.array([(dataset.tasks[task].flops, dataset.tasks[task].io_bytes) for task in dataset.task_ids])
    sheets = {name: devices.get(name) for name in np.unique(np.asarray(dataset.devices)).astype(str).tolist()}
    columns = pooled(asts, [sheets[str(name)] for name in dataset.devices])
    if asts.codes is not None:  # trees take a missing number as such
        columns = np.concatenate([columns, asts.codes], axis=1)
    return _with_devices(np.concatenate([columns, compress(size)], axis=1), dataset)


def _with_devices(columns: np.ndarray, dataset: LatencyDataset) -> np.ndarray:
    """Datasheet numbers next to the features where the data set has more than one device."""
    names, which = np.unique(np.asarray(dataset.devices), return_inverse=True)
    if len(names) < 2:
        return columns.astype(np.float32)
    sheets = np.stack([devices.get(str(name)).vector() for name in names])
    return np.concatenate([columns, sheets[which]], axis=1).astype(np.float32)

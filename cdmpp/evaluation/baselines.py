"""What any learned model must beat: a constant, a fitted roofline, gradient-boosted trees on pooled features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.per_store import PER_STORE_WIDTH
from cdmpp.data.splits import Split
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.evaluation.pooling import compress, pool_asts
from cdmpp.training.metrics import mape_factor

if TYPE_CHECKING:
    from torch import Tensor

    from cdmpp.data.batching import Batch, ProgramTensors


MAX_DEVICES = 16


@dataclass(frozen=True)
class EvaluationData:
    """A data set with the extra features that only baselines read."""

    dataset: LatencyDataset
    per_store: np.ndarray | None = None
    """(n, 4 * 164 + 1) float32, ``pooling.pool_per_store`` of TVM's PerStoreFeature; None where not derived."""
    noise: NoiseFloor | None = None
    """Of the labels; None where the records were not at hand."""


class Baseline(Protocol):
    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Learn from ``split.train``; ``split.validation`` may choose settings. The rest is never read."""

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """(len(indices),) seconds."""


class Constant:
    """The median latency of the training programs."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        self.seconds = float(np.median(data.dataset.latency_s[split.train]))

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), self.seconds)


class Roofline:
    """``kernels * launch + max(flops / rate, bytes / bandwidth)``; three numbers fitted on the training programs.

    Rate and bandwidth are fractions of the device's datasheet values, so that one fit serves several devices. The
    formula sees the operator, not its schedule.
    """

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        from scipy.optimize import minimize

        terms = self._terms(data.dataset, split.train)
        target = np.log(data.dataset.latency_s[split.train])

        def loss(parameters: np.ndarray) -> float:
            return float(np.abs(np.log(self._seconds(terms, parameters)) - target).mean())

        shortest = np.log(data.dataset.latency_s[split.train].min())
        starts = [np.array([rate, rate, shortest]) for rate in np.log([0.01, 0.1, 1.0])]
        fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 600}) for start in starts]
        self.parameters = min(fits, key=lambda fit: fit.fun).x

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        return self._seconds(self._terms(data.dataset, indices), self.parameters)

    @staticmethod
    def _terms(dataset: LatencyDataset, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds at full datasheet speed for arithmetic and for memory, and the number of kernels."""
        peaks = {name: _peaks(name) for name in np.unique(np.asarray(dataset.devices)[indices])}
        tasks = [dataset.tasks[task] for task in np.asarray(dataset.task_ids)[indices]]
        rate, bandwidth = np.array([peaks[name] for name in np.asarray(dataset.devices)[indices]]).T
        flops, io_bytes = np.array([(task.flops, task.io_bytes) for task in tasks]).T
        return flops / rate, io_bytes / bandwidth, np.diff(dataset.asts.kernel_offsets)[indices].astype(float)

    @staticmethod
    def _seconds(terms: tuple[np.ndarray, np.ndarray, np.ndarray], parameters: np.ndarray) -> np.ndarray:
        compute, memory, kernels = terms
        rate, bandwidth, launch = np.exp(parameters)
        return np.maximum(kernels * launch + np.maximum(compute / rate, memory / bandwidth), 1e-9)


class Analytic:
    """The model's own anchor alone: analytic kernel times, one factor a part fitted to the training programs."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        from cdmpp.model.anchor import Anchor

        self.anchor = Anchor()
        self.anchor.fit(_tensors(data.dataset, split.train), np.arange(len(split.train)))

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        import torch

        from cdmpp.data.batching import ordered_batches

        programs, predicted = _tensors(data.dataset, indices), np.empty(len(indices))
        with torch.no_grad():
            for batch in ordered_batches(programs, np.arange(len(indices))):
                predicted[batch.rows.numpy()] = self._log_latency(batch).double().exp().numpy()
        return predicted

    def _log_latency(self, batch: Batch) -> Tensor:
        return self.anchor.total(batch)


class CodeCosts(Analytic):
    """What the model starts from: fitted costs of what the compiler made; analytic where a program has no code."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        from cdmpp.model.code_anchor import CodeAnchor

        super().fit(data, split, seed)
        programs = _tensors(data.dataset, split.train)
        self.by_code = CodeAnchor(MAX_DEVICES, programs.device_vectors.shape[1])
        self.by_code.fit(programs, np.arange(len(split.train)))

    def _log_latency(self, batch: Batch) -> Tensor:
        from cdmpp.model.analytic import kernel_parts

        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        known = (batch.codes[:, 0] > 0) & (self.by_code.fitted > 0)
        return self.by_code(batch.codes, parts, batch)[0].where(known, super()._log_latency(batch))


def _tensors(dataset: LatencyDataset, rows: np.ndarray) -> ProgramTensors:
    from cdmpp.data.batching import ProgramTensors

    names = np.asarray(dataset.devices)[rows]
    sheets = {str(name): devices.get(str(name)) for name in np.unique(names)}
    return ProgramTensors.build(dataset.asts.take(rows), sheets, names, dataset.latency_s[rows])


def _peaks(device: str) -> tuple[float, float]:
    """Floating-point operations and bytes a second of the datasheet; 1e12 and 1e11 where unknown."""
    try:
        spec = devices.get(device).spec
    except CdmppError:
        return 1e12, 1e11
    return (spec.get("fp32_tflops") or 1.0) * 1e12, (spec.get("bandwidth_gbps") or 100.0) * 1e9


@dataclass(frozen=True)
class TreeSettings:
    """XGBoost on log-latency with an absolute-error objective; ``depths`` are compared on the validation part."""

    depths: tuple[int, ...] = (5, 7)
    rounds: int = 600
    patience: int = 50
    eta: float = 0.06
    bins: int = 128
    subsample: float = 0.8
    colsample: float = 0.4
    min_child_weight: float = 3.0
    threads: int = 1


class Trees:
    """Gradient-boosted trees on a fixed-width vector per program."""

    def __init__(
        self, features: Callable[[EvaluationData], np.ndarray], settings: TreeSettings, base: Baseline | None = None
    ) -> None:
        """With ``base`` the trees learn the logarithm of the ratio to its predictions."""
        self.features, self.settings, self.base = features, settings, base

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        from xgboost import XGBRegressor

        x, y = self.features(data), np.log(data.dataset.latency_s)
        if self.base:
            self.base.fit(data, split, seed)
            y = y - np.log(self.base.predict(data, np.arange(len(y))))
        # Many columns never vary on one kind of device; searching them takes time and finds nothing.
        self.columns = np.flatnonzero(np.ptp(x[split.train], axis=0) > 0)
        x = x[:, self.columns]
        # Trees take the first split at the base score; centring keeps it near the data.
        self.centre, chosen = float(np.median(y[split.train])), self.settings
        best = np.inf
        for depth in chosen.depths:
            model = XGBRegressor(
                objective="reg:absoluteerror",
                eval_metric="mae",
                tree_method="hist",
                max_depth=depth,
                max_bin=chosen.bins,
                n_estimators=chosen.rounds,
                early_stopping_rounds=chosen.patience,
                learning_rate=chosen.eta,
                subsample=chosen.subsample,
                colsample_bytree=chosen.colsample,
                min_child_weight=chosen.min_child_weight,
                random_state=seed,
                n_jobs=chosen.threads,
            )
            held_out = [(x[split.validation], y[split.validation] - self.centre)]
            model.fit(x[split.train], y[split.train] - self.centre, eval_set=held_out, verbose=False)
            if model.best_score < best:
                best, self.model = model.best_score, model
        # As our own models do, see ``Predictor.log_shift``: the comparison is of models, not of what is asked of them.
        found = np.exp(self.model.predict(x[split.validation]).astype(np.float64) + self.centre)
        self.factor = mape_factor(np.exp(y[split.validation]), found)

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        x = self.features(data)[indices][:, self.columns]
        ratio = self.factor * np.exp(self.model.predict(x).astype(np.float64) + self.centre)
        return ratio * self.base.predict(data, indices) if self.base else ratio


def per_store_sum(data: EvaluationData) -> np.ndarray:
    """(n, 164) the sum over stores alone."""
    return _with_devices(_per_store(data)[:, :PER_STORE_WIDTH], data.dataset)


def per_store_pooled(data: EvaluationData) -> np.ndarray:
    """(n, 657) sum, maximum, busiest store, log of the linear sum, count."""
    return _with_devices(_per_store(data), data.dataset)


def ours_pooled(data: EvaluationData) -> np.ndarray:
    """Pooled compact ASTs with the task's arithmetic and bytes."""
    dataset = data.dataset
    size = np.array([(dataset.tasks[task].flops, dataset.tasks[task].io_bytes) for task in dataset.task_ids])
    terms, seconds = analytic_kernels(dataset)
    total = np.add.reduceat(seconds, dataset.asts.kernel_offsets[:-1])
    pooled = pool_asts(dataset.asts, compress(terms * 1e9), seconds)
    if dataset.asts.codes is not None:  # trees take a missing number as such
        pooled = np.concatenate([pooled, dataset.asts.codes], axis=1)
    return _with_devices(np.concatenate([pooled, compress(size), compress(total[:, None] * 1e9)], axis=1), dataset)


def analytic_kernels(dataset: LatencyDataset) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each kernel by the analytic formula, no factor fitted: (kernels, bounds), (kernels,) in all."""
    import torch

    from cdmpp.data.batching import spec_array
    from cdmpp.model.analytic import bound_times, kernel_parts, kernel_seconds

    asts = dataset.asts
    owner = np.repeat(np.arange(len(asts)), np.diff(asts.kernel_offsets))
    names, which = np.unique(np.asarray(dataset.devices), return_inverse=True)
    sheets = np.stack([spec_array(devices.get(str(name))) for name in names])[which]
    with torch.no_grad():
        times = bound_times(
            kernel_parts(
                torch.tensor(asts.kernel_features)[:, None],
                torch.from_numpy(sheets[owner]),
                torch.from_numpy(asts.target_kinds[owner].astype(np.int64)),
            )
        )
        return times[:, 0].numpy().astype(np.float64), kernel_seconds(times)[:, 0].numpy().astype(np.float64)


def _per_store(data: EvaluationData) -> np.ndarray:
    if data.per_store is None:
        raise DataError(
            "this baseline needs TVM's per-store features, and they are not derived for this data set: run "
            "evaluate.py where TVM is installed, or take it out of models"
        )
    return data.per_store


def _with_devices(columns: np.ndarray, dataset: LatencyDataset) -> np.ndarray:
    """Datasheet numbers beside the features where the data set has more than one device."""
    names, which = np.unique(np.asarray(dataset.devices), return_inverse=True)
    if len(names) < 2:
        return columns.astype(np.float32)
    sheets = np.stack([devices.get(str(name)).vector() for name in names])
    return np.concatenate([columns, sheets[which]], axis=1).astype(np.float32)


BASELINES: dict[str, Callable[[TreeSettings], Baseline]] = {
    "constant": lambda settings: Constant(),
    "roofline": lambda settings: Roofline(),
    "analytic": lambda settings: Analytic(),
    "code_costs": lambda settings: CodeCosts(),
    "xgb_per_store_sum": lambda settings: Trees(per_store_sum, settings),
    "xgb_per_store": lambda settings: Trees(per_store_pooled, settings),
    "xgb_ours": lambda settings: Trees(ours_pooled, settings),
    "xgb_ours_residual": lambda settings: Trees(ours_pooled, settings, base=Analytic()),
    "xgb_code_residual": lambda settings: Trees(ours_pooled, settings, base=CodeCosts()),
}
NEED_PER_STORE = ("xgb_per_store_sum", "xgb_per_store")


def make_baseline(name: str, settings: TreeSettings) -> Baseline:
    """Baseline by name; ``DataError`` lists the names."""
    if name not in BASELINES:
        raise DataError(f"unknown baseline {name!r}; known: {', '.join(BASELINES)}")
    return BASELINES[name](settings)

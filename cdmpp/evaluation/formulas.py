"""Baselines that are formulas: a constant, a fitted roofline, the analytic kernel times, the fitted costs of code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize

from cdmpp import devices
from cdmpp.ast.table import TARGET_KINDS
from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.model.analytic import kernel_parts
from cdmpp.model.analytical_prior import AnalyticalPrior
from cdmpp.model.code_prior import CodePrior
from cdmpp.model.gpu_code_prior import GpuCodePrior

_MAX_DEVICES = 16


class Constant:
    """Every program takes the median latency of the training programs."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Take the median of ``split.train``."""
        self.seconds = float(np.median(data.dataset.latency_s[split.train]))

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        return np.full(len(indices), self.seconds)


class Roofline:
    """Fit launch and fractions of the datasheet in ``kernels * launch + max(flops / rate, bytes / bandwidth)``."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Minimise the mean absolute error of log-latency on ``split.train``, from three starting points."""
        terms = self._terms(data.dataset, split.train)
        target = np.log(data.dataset.latency_s[split.train])

        starts = [np.array([rate, rate, target.min()]) for rate in np.log([0.01, 0.1, 1.0])]
        self.parameters = _least_error(lambda parameters: self._seconds(terms, parameters), target, starts)

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        return self._seconds(self._terms(data.dataset, indices), self.parameters)

    @staticmethod
    def _terms(dataset: LatencyDataset, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds at full datasheet speed for arithmetic and for memory, and the number of kernels."""
        names = np.asarray(dataset.devices)[indices]
        sheets = devices.sheets_of(names)
        specs = [sheets[str(name)].spec for name in names]
        tasks = [dataset.tasks[task] for task in np.asarray(dataset.task_ids)[indices]]
        # 1 TFLOP/s and 100 GB/s where the datasheet does not say.
        rate = np.array([spec["fp32_tflops"] or 1.0 for spec in specs]) * 1e12
        bandwidth = np.array([spec["bandwidth_gbps"] or 100.0 for spec in specs]) * 1e9
        flops, io_bytes = np.array([(task.flops, task.io_bytes) for task in tasks]).T
        return flops / rate, io_bytes / bandwidth, np.diff(dataset.asts.kernel_offsets)[indices].astype(float)

    @staticmethod
    def _seconds(terms: tuple[np.ndarray, np.ndarray, np.ndarray], parameters: np.ndarray) -> np.ndarray:
        compute, memory, kernels = terms
        rate, bandwidth, launch = np.exp(parameters)
        return np.maximum(kernels * launch + np.maximum(compute / rate, memory / bandwidth), 1e-9)


class Analytic:
    """The model's own analytical prior predicts alone, with factors fitted to the training programs."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Fit the factors on ``split.train``."""
        self.prior = AnalyticalPrior()
        self.prior.fit(_tensors(data.dataset, split.train), np.arange(len(split.train)))

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        programs, predicted = _tensors(data.dataset, indices), np.empty(len(indices))
        with torch.no_grad():
            for batch in ordered_batches(programs, np.arange(len(indices))):
                predicted[batch.rows.numpy()] = self._log_latency(batch).double().exp().numpy()
        return predicted

    def _log_latency(self, batch: Batch) -> torch.Tensor:
        return self.prior.total(batch)


class CodeCosts(Analytic):
    """The model starts from this: fitted costs of what the compiler made; analytic where a program has no code."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Fit the costs on programs of ``split.train`` that have code vectors."""
        super().fit(data, split, seed)
        programs = _tensors(data.dataset, split.train)
        rows = np.arange(len(split.train))
        on_gpu = programs.coded_kinds(rows) == [TARGET_KINDS.index("gpu")]
        self.by_code = GpuCodePrior() if on_gpu else CodePrior(_MAX_DEVICES, programs.device_vectors.shape[1])
        self.by_code.fit(programs, rows)

    def _log_latency(self, batch: Batch) -> torch.Tensor:
        parts = kernel_parts(batch.kernels, batch.device_specs, batch.kinds)
        coded = (batch.codes[:, 0] > 0) & (self.by_code.fitted > 0)
        return self.by_code(batch.codes, parts, batch)[0].where(coded, super()._log_latency(batch))


class Simulated(Analytic):
    """Simulated cycles get a fitted factor and time of a launch. It is analytic without code vectors."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Minimise the mean absolute error of log-latency on those of ``split.train`` that have code vectors."""
        super().fit(data, split, seed)
        simulated_s, kernels = self.terms(data.dataset, split.train)
        coded = np.isfinite(simulated_s)
        self.parameters = np.full(2, np.nan)
        if coded.any():
            target, terms = np.log(data.dataset.latency_s[split.train][coded]), (simulated_s[coded], kernels[coded])
            starts = [np.array([0.0, target.min() + less]) for less in (0.0, -2.0)]
            self.parameters = _least_error(lambda parameters: self._seconds(*terms, parameters), target, starts)

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        predicted = self._seconds(*self.terms(data.dataset, indices), self.parameters)
        return np.where(np.isfinite(predicted), predicted, super().predict(data, indices))

    @staticmethod
    def terms(dataset: LatencyDataset, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) simulated seconds, NaN without a code vector, and how many kernels each has."""
        asts, names = dataset.asts, np.asarray(dataset.devices)[indices]
        sheets = devices.sheets_of(names)
        clocks_hz = 1e6 * np.array([sheets[str(name)].spec["clock_mhz"] or np.nan for name in names])
        on_gpu = asts.target_kinds[indices] == TARGET_KINDS.index("gpu")
        columns = np.where(on_gpu, GpuCodePrior.simulated, CodePrior.simulated) - 1  # of a batch: the first is a flag
        cycles = np.exp2(asts.codes_or_nan()[indices, columns]) - 1
        return cycles / clocks_hz, np.diff(asts.kernel_offsets)[indices].astype(float)

    @staticmethod
    def _seconds(simulated_s: np.ndarray, kernels: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        factor, launch = np.exp(parameters)
        return factor * simulated_s + launch * kernels


def _least_error(
    seconds: Callable[[np.ndarray], np.ndarray], log_latency: np.ndarray, starts: Sequence[np.ndarray]
) -> np.ndarray:
    """Parameters of ``seconds`` with the least mean absolute error of log-latency, from several starting points."""

    def loss(parameters: np.ndarray) -> float:
        return float(np.abs(np.log(seconds(parameters)) - log_latency).mean())

    fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 600}) for start in starts]
    return min(fits, key=lambda fit: fit.fun).x


def _tensors(dataset: LatencyDataset, rows: np.ndarray) -> ProgramTensors:
    names = np.asarray(dataset.devices)[rows]
    return ProgramTensors.build(dataset.asts.take(rows), devices.sheets_of(names), names, dataset.latency_s[rows])

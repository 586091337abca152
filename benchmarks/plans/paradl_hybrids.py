"""ParaDL's measured epochs under every strategy, predicted after calibrating on ResNet-50 alone."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.plans.layer_table import judge
from benchmarks.plans.paradl_data import GPUS_PER_NODE, abci, data_parallel_share, layer_table
from benchmarks.plans.paradl_epochs import SPATIAL, Epoch, epochs
from benchmarks.plans.paradl_spatial import Parts, Way, parts, ways
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.calibration import Calibration, Run, calibrate
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import plan_on
from cdmpp.plans.sources.predicted import PredictedSource

_ZOO = {"resnet50": "torchvision:resnet50", "vgg": "torchvision:vgg16"}
_ADAPTERS = {"filter+data": GPUS_PER_NODE}
"""Their script has one ring of the first GPUs of all nodes and one of all other GPUs: two flows for two adapters, as if
each GPU had an adapter to itself."""
_LEAST_INSIDE = 0.1
"""A link inside a node that reaches less is not what a strategy waits for."""
TRAINED_ON = "resnet50"


@dataclass(frozen=True)
class Found:
    """What ResNet-50 says of one strategy."""

    compute: float
    """Measured seconds of computing by those of the divided kernels."""
    inside: float
    """Share of the bandwidth inside a node."""
    between: float
    """The same between nodes."""

    def exchanged_s(self, folder: Path, one: Epoch) -> float:
        """Predict the seconds of exchanging of one step."""
        links = abci(one.gpus, self.inside, self.between, _ADAPTERS.get(one.strategy, 2))
        costs = judge(layer_table(folder, one.model)).closed_form(one.columns, links)
        return sum(float(np.nan_to_num(each[0])) for each in costs.communication_s.values())

    @property
    def words(self) -> str:
        return f"{self.inside:.2f} and {self.between:.2f} of the bandwidth"


@dataclass(frozen=True)
class ByLeaders:
    """What ResNet-50 says of spatial+data."""

    compute: float
    way: Way
    factors: tuple[float, ...]

    def exchanged_s(self, folder: Path, one: Epoch) -> float:
        """Predict the seconds of exchanging of one step."""
        return self.way.predicted_s(np.array(self.factors), _parts(folder, one))

    @property
    def words(self) -> str:
        return self.way.words(self.factors)


Fit = Found | ByLeaders


def predicted_s(fit: Fit, folder: Path, one: Epoch) -> float:
    """Predict the seconds of one epoch."""
    return fit.compute * _computing_s(folder, one) + fit.exchanged_s(folder, one) * one.steps


def _computing_s(folder: Path, one: Epoch) -> float:
    """Seconds of an epoch's kernels, before a factor."""
    whole_s = one.group_batch * layer_table(folder, one.model).whole_s
    return divided(one.model, one.group_batch, one.split, one.inside) * whole_s * one.steps


def _parts(folder: Path, one: Epoch) -> Parts:
    return parts(layer_table(folder, one.model), one.group_batch, one.gpus)


@cache
def divided(model: str, batch: int, split: str, ranks: int) -> float:
    """Return the passes of divided kernels by those of whole ones, by the shipped model of kernels on V100."""
    source = _source(_ZOO[model])
    whole_s, part_s = (
        sum(op.duration_s for op in source.work(batch, degrees).rank.ops if op.phase != "update")
        for degrees in (ParallelDegrees(), ParallelDegrees(**{split: ranks}))
    )
    return part_s / whole_s


@cache
def _source(network: str) -> PredictedSource:
    return PredictedSource(Workload(network, optimizer="adam"), devices.get("v100"))


def calibrated(folder: Path) -> dict[str, Fit]:
    """Fit each strategy on one network.

    The share between nodes is that of its 8-GPU data parallel run, where that explains the rows of the strategy; else
    there is one share for all links. Of spatial+data, all that leaders do is fitted: ``tried`` says why.
    """
    return {strategy: _fit(folder, few) for strategy, few in _training_rows(folder).items()}


def _training_rows(folder: Path) -> dict[str, list[Epoch]]:
    own: dict[str, list[Epoch]] = {}
    for one in epochs(folder):
        if one.model == TRAINED_ON and one.adds_up:
            own.setdefault(one.strategy, []).append(one)
    return own


def tried(folder: Path) -> list[tuple[str, float, list[tuple[Epoch, float]]]]:
    """Fit spatial+data on ResNet-50 in each way.

    Returns:
        Name, mean relative error of exchanges where each row of ResNet-50 is left out, and all rows of the other
        network with their epochs; the way that leaves least first.
    """
    own = _training_rows(folder)[SPATIAL]
    found = []
    for name, way in ways(data_parallel_share(folder)).items():
        fit = _by_leaders(folder, own, way)
        error = way.left_out_error(*_exchanges(folder, own))
        rest = [one for one in epochs(folder) if one.strategy == SPATIAL and one.model != TRAINED_ON]
        found.append((name, error, [(one, predicted_s(fit, folder, one)) for one in rest]))
    return sorted(found, key=lambda each: each[1])


def _exchanges(folder: Path, own: list[Epoch]) -> tuple[list[Parts], list[float]]:
    """What each row exchanges in one step, and the seconds that were measured."""
    return [_parts(folder, one) for one in own], [one.communication_s / one.steps for one in own]


def _by_leaders(folder: Path, own: list[Epoch], way: Way) -> ByLeaders:
    return ByLeaders(_compute(folder, own), way, tuple(map(float, way.fitted(*_exchanges(folder, own)))))


def _compute(folder: Path, own: list[Epoch]) -> float:
    """Measured seconds of computing by predicted ones, in the geometric mean."""
    return math.exp(float(np.mean([np.log(one.compute_s / _computing_s(folder, one)) for one in own])))


def _fit(folder: Path, own: list[Epoch]) -> Fit:
    far = data_parallel_share(folder)
    if own[0].strategy == SPATIAL:
        every = ways(far).values()
        return _by_leaders(folder, own, min(every, key=lambda way: way.left_out_error(*_exchanges(folder, own))))
    compute, of_run = _compute(folder, own), {one.gpus: one for one in own}
    runs = [Run(plan_on(one.gpus), one.batch, one.communication_s) for one in own]

    def exchanged_s(run: Run, found: Calibration, between: float | None) -> float:
        shares, one = Found(compute, found.bandwidth, between or found.bandwidth), of_run[run.plan.ranks]
        return shares.exchanged_s(folder, one) * one.steps

    with suppress(CdmppError):  # no share inside a node explains the rows
        inside = calibrate(runs, lambda run, found: exchanged_s(run, found, far)).bandwidth
        if inside >= _LEAST_INSIDE:
            return Found(compute, inside, far)
    whole = calibrate(runs, lambda run, found: exchanged_s(run, found, None)).bandwidth
    return Found(compute, whole, whole)


def predicted(folder: Path) -> list[tuple[Epoch, float]]:
    """Predict every row whose strategy was calibrated."""
    fits = calibrated(folder)
    return [(one, predicted_s(fits[one.strategy], folder, one)) for one in epochs(folder)]


def accuracy(found: float, measured: float) -> float:
    """Return the authors' accuracy."""
    return 1.0 - abs(found - measured) / measured


def orders(found: list[tuple[Epoch, float]]) -> tuple[int, int]:
    """Count groups of equal network and GPUs whose fastest strategy is predicted, and all of them."""
    groups: dict[tuple[str, int], list[tuple[Epoch, float]]] = {}
    for one, epoch_s in found:
        groups.setdefault((one.model, one.gpus), []).append((one, epoch_s))
    right = sum(
        min(own, key=lambda pair: pair[1])[0] == min(own, key=lambda pair: pair[0].total_s)[0]
        for own in groups.values()
    )
    return right, len(groups)

"""Measured epochs of ParaDL's report under every strategy, predicted after calibrating on ResNet-50 alone."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.plans.layer_table import columns, judge
from benchmarks.plans.paradl_data import GPUS_PER_NODE, abci, data_parallel_share, layer_table, rows
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.calibration import Calibration, Run, calibrate
from cdmpp.plans.candidates import Candidates
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import plan_on
from cdmpp.plans.sources.predicted import PredictedSource

SAMPLES = 1_281_167
_BATCH = {"resnet50": 64, "vgg": 32}
"""Examples of one step of each group of ranks that share a model."""
_ZOO = {"resnet50": "torchvision:resnet50", "vgg": "torchvision:vgg16"}
_ADAPTERS = {"filter+data": GPUS_PER_NODE}
"""Their script has one ring of the first GPUs of all nodes and one of all other GPUs: two flows for two adapters, as if
each GPU had an adapter to itself."""
_LEAST_INSIDE = 0.1
"""A link inside a node that reaches less is not what a strategy waits for."""
_MODELS = {"ResNet50": "resnet50", "VGG16": "vgg"}
TRAINED_ON = "resnet50"


@dataclass(frozen=True)
class Epoch:
    """One row of the report's table VIII: seconds of one epoch."""

    model: str
    gpus: int
    strategy: str
    compute_s: float
    communication_s: float
    total_s: float
    paradl_s: float
    """What the authors' tool projected for the total."""
    adds_up: bool

    @property
    def is_hybrid(self) -> bool:
        return "+" in self.strategy

    @property
    def batch(self) -> int:
        """Examples of one step of all ranks."""
        return _BATCH[self.model] * self.replicas

    @property
    def split(self) -> str:
        """Return the degree that divides the model."""
        return self.strategy.split("+")[0]

    @property
    def inside(self) -> int:
        """Return the ranks that divide the model: those of a node under hybrids."""
        return GPUS_PER_NODE if self.is_hybrid else self.gpus

    @property
    def replicas(self) -> int:
        return self.gpus // self.inside

    @property
    def columns(self) -> Candidates:
        """Return the plan."""
        return columns(self.split, self.inside, self.replicas, self.batch)

    @property
    def steps(self) -> int:
        return math.ceil(SAMPLES / self.batch)


def epochs(folder: Path) -> list[Epoch]:
    """Read the table."""
    return [
        Epoch(
            _MODELS[row["model"]],
            int(row["gpus"]),
            row["strategy"],
            float(row["measured_compute_s"]),
            float(row["measured_comm_s"]),
            float(row["measured_total_s"]),
            float(row["paradl_total_s"]),
            row["parts_add_up"] == "1",
        )
        for row in rows(folder / "epoch_table.csv")
    ]


@dataclass(frozen=True)
class Found:
    """What ResNet-50 says of one strategy."""

    compute: float
    """Measured seconds of computing by those of the divided kernels."""
    inside: float
    """Share of the bandwidth inside a node."""
    between: float
    """The same between nodes."""

    def parts_s(self, folder: Path, one: Epoch) -> tuple[float, float]:
        """Predict the seconds of computing and of exchanging of one epoch."""
        links = abci(one.gpus, self.inside, self.between, _ADAPTERS.get(one.strategy, 2))
        table = layer_table(folder, one.model)
        costs = judge(table).closed_form(one.columns, links)
        exchanged = sum(float(np.nan_to_num(each[0])) for each in costs.communication_s.values())
        whole_s = one.batch // one.replicas * table.whole_s
        return self.compute * divided(one.model, one.split, one.inside) * whole_s * one.steps, exchanged * one.steps


@cache
def divided(model: str, split: str, ranks: int) -> float:
    """Return the passes of divided kernels by those of whole ones, by the shipped model of kernels on V100."""
    network, batch = _ZOO[model], _BATCH[model]
    source = _source(network)
    whole_s, part_s = (
        sum(op.duration_s for op in source.work(batch, degrees).rank.ops if op.phase != "update")
        for degrees in (ParallelDegrees(), ParallelDegrees(**{split: ranks}))
    )
    return part_s / whole_s


@cache
def _source(network: str) -> PredictedSource:
    return PredictedSource(Workload(network, optimizer="adam"), devices.get("v100"))


def calibrated(folder: Path) -> dict[str, Found]:
    """Fit each strategy on one network.

    The share between nodes is that of its 8-GPU data parallel run, where that explains the rows of the strategy; else
    there is one share for all links.
    """
    own: dict[str, list[Epoch]] = {}
    for one in epochs(folder):
        if one.model == TRAINED_ON and one.adds_up:
            own.setdefault(one.strategy, []).append(one)
    return {strategy: _fit(folder, few) for strategy, few in own.items()}


def _fit(folder: Path, own: list[Epoch]) -> Found:
    far = data_parallel_share(folder)
    ratios = [one.compute_s / Found(1.0, 1.0, far).parts_s(folder, one)[0] for one in own]
    compute = math.exp(float(np.mean(np.log(ratios))))
    of_run = {one.gpus: one for one in own}
    runs = [Run(plan_on(one.gpus), one.batch, one.communication_s) for one in own]

    def exchanged_s(run: Run, found: Calibration, between: float | None) -> float:
        shares = Found(compute, found.bandwidth, between or found.bandwidth)
        return shares.parts_s(folder, of_run[run.plan.ranks])[1]

    with suppress(CdmppError):  # no share inside a node explains the rows
        inside = calibrate(runs, lambda run, found: exchanged_s(run, found, far)).bandwidth
        if inside >= _LEAST_INSIDE:
            return Found(compute, inside, far)
    whole = calibrate(runs, lambda run, found: exchanged_s(run, found, None)).bandwidth
    return Found(compute, whole, whole)


def predicted(folder: Path) -> list[tuple[Epoch, float]]:
    """Predict every row whose strategy was calibrated."""
    fits = calibrated(folder)
    return [(one, sum(fits[one.strategy].parts_s(folder, one))) for one in epochs(folder)]


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

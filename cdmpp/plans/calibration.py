"""Calibration: what measured runs of some plans say about all others, a factor of computing and a share of the link."""

from __future__ import annotations

import csv
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError, DataError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_file import read_plan
from cdmpp.plans.sources.source import BehindSource, RankWork, StepSource
from cdmpp.platform.limits import Limits, check_fields, numbers
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.scale import scale_rank

_FACTOR = numbers(1e-3, 1e3, "times")
_COLUMNS = {"global_batch": "global_batch", "seconds": "iteration_s"}
"""Column of numbers in a file of runs -> the field of ``Run``."""
_SHARE = (1e-3, 4.0)
"""Between a thousandth of the link's rate, and several links where the sheet counts one."""


@dataclass(frozen=True)
class Run:
    """One plan was measured."""

    LIMITS: ClassVar = {"global_batch": Limits(1, 2**31, "examples"), "iteration_s": numbers(0, 1e9, "s", above=True)}

    plan: Plan
    global_batch: int
    """Examples of one step of all ranks."""
    iteration_s: float
    """Seconds of a whole step."""

    def __post_init__(self) -> None:
        check_fields(self, "run.")


@dataclass(frozen=True)
class Calibration:
    """Two numbers that carry over from measured plans to others of the same job on the same cluster."""

    LIMITS: ClassVar = {"compute": _FACTOR, "bandwidth": _FACTOR}

    compute: float = 1.0
    """Measured seconds of computing by predicted ones."""
    bandwidth: float = 1.0
    """The share of the links' bandwidth that exchanges reach; start-ups stay as they are."""
    holds_between_nodes: bool = True
    """False: all runs were on one node, and links between nodes stay as they are described."""

    def __post_init__(self) -> None:
        check_fields(self, "calibration.")

    def topology(self, nominal: Topology) -> Topology:
        """Return the links as the runs found them."""
        return at_bandwidth(nominal, self.bandwidth, self.bandwidth if self.holds_between_nodes else 1.0)

    def source(self, nominal: StepSource) -> StepSource:
        """Return what a rank computes as the runs found it."""
        return nominal if self.compute == 1.0 else _Scaled(nominal, self.compute)


@dataclass(frozen=True)
class _Scaled(BehindSource):
    """Ops take ``factor`` times as long; pauses of the host stay."""

    nominal: StepSource
    factor: float

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        work = self.nominal.work(batch, degrees, strategies)
        (rank,) = scale_rank(StepGraph((work.rank,)), work.rank.rank, self.factor).ranks
        return replace(work, rank=rank)


Predicted = Callable[[Run, Calibration], float]
"""Seconds of a step of the plan of a run, under a calibration."""


def by_replay(source: StepSource, topology: Callable[[int], Topology]) -> Predicted:
    """Predict the steps of runs by replay.

    Args:
        source: what a rank computes.
        topology: number of ranks -> the links between them.
    """

    def predicted_s(run: Run, calibration: Calibration) -> float:
        links = calibration.topology(topology(run.plan.ranks))
        lowered = lower(calibration.source(source), run.plan, links, run.global_batch)
        return replay(lowered.graph, links, synchrony=run.plan.synchrony).step_s

    return predicted_s


def calibrate(runs: Sequence[Run], predicted_s: Predicted) -> Calibration:
    """Fit the two numbers to measured runs, in order: computing from runs on one rank, then links from the others.

    The link's share is the one under which predicted and measured steps agree in the geometric mean. What no run tells
    stays 1.

    Args:
        runs: measured plans.
        predicted_s: what the oracle says of them, such as ``by_replay``; never more where bandwidth grows.

    Raises:
        CdmppError: no run at all, or runs that no share between 0.001 and 4 explains: what they take is not exchanging.
    """
    if not runs:
        raise CdmppError("no runs to calibrate on: measure one rank, and one job on several")
    alone = [run for run in runs if run.plan.ranks == 1]
    found, several = Calibration(), [run for run in runs if run.plan.ranks > 1]
    if alone:
        found = Calibration(math.exp(-_log_ratio(alone, predicted_s, found)))
    if not several:
        return found
    low, high = (_log_ratio(several, predicted_s, replace(found, bandwidth=share)) for share in _SHARE)
    if not high <= 0.0 <= low:
        worst = "more than with a thousandth" if low < 0 else "less than with four times"
        raise CdmppError(
            f"{len(several)} runs on several ranks take {worst} of the links' bandwidth: they wait for something else, "
            "or the calibration of computing does not hold for them"
        )
    from scipy.optimize import brentq  # answers without a calibration need none of it

    share = brentq(
        lambda log: _log_ratio(several, predicted_s, replace(found, bandwidth=math.exp(log))), *np.log(_SHARE)
    )
    return replace(found, bandwidth=math.exp(share))


def calibrate_by_replay(runs: Sequence[Run], source: StepSource, topology: Callable[[int], Topology]) -> Calibration:
    """Fit the two numbers by replay; runs on one node say nothing about the links between nodes.

    Args:
        runs: measured plans.
        source: what a rank computes.
        topology: number of ranks -> the links between them.

    Raises:
        CdmppError: as ``calibrate``.
    """
    found = calibrate(runs, by_replay(source, topology))
    return replace(found, holds_between_nodes=any(topology(run.plan.ranks).nodes > 1 for run in runs))


def read_runs(path: Path) -> tuple[Run, ...]:
    """Read a CSV file with the columns ``plan``, ``global_batch`` and ``seconds`` of a whole step.

    A plan is the path of its file, from the folder of the CSV file. ``DataError`` names the file, the line and the
    column that cannot be read, and what is allowed there.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not rows or not {"plan", "global_batch", "seconds"} <= rows[0].keys():
        raise DataError(f"{path} has no runs: expected a line plan,global_batch,seconds and one line a run")
    runs = []
    for number, row in enumerate(rows, 2):
        where = f"{path}, line {number}"
        global_batch, seconds = (_number(row, column, field, where) for column, field in _COLUMNS.items())
        if not row["plan"]:
            raise DataError(f"{where}, column plan is empty: expected the path of a plan, as --save-plan writes it")
        try:
            run = Run(read_plan(path.parent / row["plan"]), global_batch, seconds)
            micro_batch_of(run.plan, run.global_batch)  # says what does not divide
            runs.append(run)
        except CdmppError as error:
            raise DataError(f"{where}: {error}") from error
    return tuple(runs)


def _number(row: Mapping[str, str | None], column: str, field: str, where: str) -> Any:
    """Return the number of a column, which is a ``field`` of ``Run``."""
    try:
        return Run.LIMITS[field](row[column] or "")
    except ArgumentTypeError as error:
        raise DataError(f"{where}, column {column}: {error}") from error


def at_bandwidth(topology: Topology, inside: float, between: float | None = None) -> Topology:
    """Return a topology whose links carry shares of its bandwidth, inside nodes and ``between`` them; None: the same.

    What a collective of one byte takes is its start-up, which stays; the rest of its time follows its bytes.
    """

    def slower(cost: Callable[..., CollectiveEstimate], share: float) -> Callable[..., CollectiveEstimate]:
        def cost_at(collective: Collective, *flows: float) -> CollectiveEstimate:
            whole, least = cost(collective, *flows), cost(replace(collective, bytes=1), *flows)

            def seconds(all_s: float, start_s: float) -> float:
                return min(start_s, all_s) + max(all_s - start_s, 0.0) / share

            return replace(
                whole,
                latency_s=seconds(whole.latency_s, least.latency_s),
                low_s=seconds(whole.low_s, least.low_s),
                high_s=seconds(whole.high_s, least.high_s),
                source=f"{whole.source}, at {share:.3g} of its bandwidth",
            )

        return cost_at

    found, between = topology, inside if between is None else between
    if inside != 1.0:
        found = replace(found, near=slower(found.near, inside), near_rate=inside * found.near_rate)
    if found.far is None or between == 1.0:
        return found
    return replace(found, far=slower(found.far, between), far_rate=between * found.far_rate)


def _log_ratio(runs: Sequence[Run], predicted_s: Predicted, calibration: Calibration) -> float:
    """Mean logarithm of predicted by measured seconds."""
    return float(np.mean([math.log(predicted_s(run, calibration) / run.iteration_s) for run in runs]))

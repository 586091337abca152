"""What measured jobs are predicted to do, from batches without servers and constants of a part of the grid.

Real workers begin in whatever phase they are and share a link while their exchanges overlap. Transfers share it evenly,
so the distance between two equal workers changes only as their batches vary: jobs as short as these keep much of how
they began. So each replay begins its workers at random moments of a batch, lets batches vary as they were measured to,
and the prediction is the mean over replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import Cell, is_for_fit, steady_rate
from benchmarks.synchrony.watched import REPLAYS, replays
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.loop import ClosedLoop
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes.place import WorkerPlace
from cdmpp.synchrony.processes.quota import Quota
from cdmpp.synchrony.worker import Server, Worker

Run = Mapping[str, Any]
Runs = Mapping[str, Run]
_GRIDS = ("grid/", "again/")


class Batches(Enum):
    """Where a prediction has the seconds of batches from."""

    ALONE = "one worker alone"
    AROUND = "the same workers before and after the job, without servers"
    OWN = "the job itself"


@dataclass(frozen=True)
class Constants:
    """Fitted on the part of the grid with one rate and one or two workers; the same for both networks."""

    commit_cpu_s: float
    """CPU seconds of a worker for one commit and pull; it takes 1 / share as long."""
    slow_down: float
    """Growth of the seconds of a batch of one worker alone with each further worker of the job."""
    add_bytes_per_s: float
    """Bytes that a server adds and copies in a second."""


def measured_cells(runs: Runs) -> list[tuple[Cell, Run]]:
    """List all jobs of the grid; a cell that was measured again is there again."""
    return [(Cell(**run["cell"]), run) for name, run in runs.items() if name.startswith(_GRIDS)]


def fit(runs: Runs) -> Constants:
    """Fit the constants on the cells that are for it: medians of what each cell says."""
    costs, slow, adding = [], [], []
    for cell, run in ((cell, run) for cell, run in measured_cells(runs) if is_for_fit(cell)):
        alone = alone_of(runs, cell.network, cell.share)
        adding.append(alone["parameter_bytes"] * sum(run["commits"]) / sum(run["server_busy_s"]))
        if cell.workers == 1:
            wire_s = 2 * alone["parameter_bytes"] * beta_of(runs, cell.mbit)
            add_s = alone["parameter_bytes"] / cell.servers / adding[-1]
            costs.append((run["communication_s"][0] / run["commits"][0] - wire_s - add_s) * cell.share)
        else:
            slow.append((around_s(runs, cell, run) / alone_s(runs, cell) - 1) / (cell.workers - 1))
    cost_s, growth = (max(0.0, float(np.median(values))) for values in (costs, slow))
    return Constants(cost_s, growth, float(np.median(adding)))


def rested_s(share: float) -> float:
    """Seconds by which a batch is shorter that begins after its worker stood still: the period less the quota.

    A process that was idle has the quota of a period whole, and its batch ends on the last quota, not on the last
    period. Nothing is fitted.
    """
    quota_us, period_us = Quota(Path(), share).times_us
    return 1e-6 * (period_us - quota_us)


def alone_of(runs: Runs, network: str, share: float) -> Run:
    return runs[f"alone/{network}/{share:g}"]


def alone_s(runs: Runs, cell: Cell) -> float:
    """Seconds of a batch of one worker alone that stands still for nobody.

    The median of its own run and of the times before and after jobs of one worker that are fitted on.

    The speed of the machine drifts, and a single run of some seconds shows one moment of it.
    """
    ones = [
        around_s(runs, other, run)
        for other, run in measured_cells(runs)
        if "batch_before_s" in run
        and is_for_fit(other)
        and (other.workers, other.network, other.share) == (1, cell.network, cell.share)
    ]
    return float(np.median([alone_of(runs, cell.network, cell.share)["batch_s"], *ones]))


def around_s(runs: Runs, cell: Cell, run: Run) -> float:
    """Seconds of a batch of the workers of a job before and after it, without servers."""
    if "batch_before_s" not in run:
        return alone_s(runs, cell)
    return float(np.nanmean([run["batch_before_s"], run["batch_after_s"]]))


def batch_s(runs: Runs, cell: Cell, run: Run, constants: Constants, batches: Batches) -> float:
    """Seconds of a batch as a prediction takes them, of one that begins right after another."""
    if batches is Batches.OWN:
        return float(np.mean(run["batch_s"])) + rested_s(cell.share) / cell.every
    if batches is Batches.AROUND:
        return around_s(runs, cell, run)
    return alone_s(runs, cell) * (1 + constants.slow_down * (cell.workers - 1))


def beta_of(runs: Runs, mbit: float) -> float:
    """Seconds a byte of a link, as it was measured with one stream."""
    return 8e-6 / runs[f"link/{mbit:g}"]["one_way"]


def job_of(
    runs: Runs, network: str, places: Sequence[WorkerPlace], seconds: Sequence[float], servers: int,
    constants: Constants,
) -> Job:  # fmt: skip
    """The job as the replay takes it, with the ``seconds`` of a batch of each worker; all links are as the first."""
    mbit = places[0].mbit
    assert mbit is not None
    beta, workers, parameter_bytes = beta_of(runs, mbit), [], 0.0
    for place, one_s in zip(places, seconds, strict=True):
        assert place.cpu_share is not None
        alone = alone_of(runs, network, place.cpu_share)
        parameter_bytes = alone["parameter_bytes"]
        # Half of a commit's cost is paid with the push and half with the pull.
        link = AlphaBeta(constants.commit_cpu_s / place.cpu_share / 2, beta)
        rested = rested_s(place.cpu_share)
        workers.append(Worker(float(one_s), alone["samples"], alone["spread"], link, rested_s=rested))
    return Job(tuple(workers), parameter_bytes, (Server(AlphaBeta(0.0, beta), constants.add_bytes_per_s),) * servers)


def predicted_rate(runs: Runs, cell: Cell, run: Run, constants: Constants, batches: Batches) -> float:
    """Samples a second of a job of equal workers: the mean of its replays."""
    return float(np.mean(predicted_rates(runs, cell, run, constants, batches)))


def predicted_rates(
    runs: Runs, cell: Cell, run: Run, constants: Constants, batches: Batches, seeds: int = REPLAYS
) -> list[float]:
    """Samples a second of each replay of a job of equal workers; a replay lasts as long as the job."""
    one_s = batch_s(runs, cell, run, constants, batches)
    job = job_of(runs, cell.network, cell.worker_places, [one_s] * cell.workers, cell.servers, constants)
    found = replays(job, synchrony_of(f"async:{cell.every}"), run["seconds_s"], seeds, is_apart=True)
    each = [[steady_rate([(at_s, count) for at_s, count, _ in own]) for own in one.commits] for one in found]
    return [sum(rates) * job.workers[0].samples for rates in each]


def loop_rate(runs: Runs, cell: Cell, run: Run, constants: Constants, batches: Batches) -> float:
    """Samples a second of a job of equal workers by the closed form that machines are bought by."""
    one_s = batch_s(runs, cell, run, constants, batches)
    job = job_of(runs, cell.network, cell.worker_places, [one_s] * cell.workers, cell.servers, constants)
    worker, part = job.workers[0], job.bytes / cell.servers
    link_s, add_s = worker.link.beta_s * part, part / constants.add_bytes_per_s
    alone_s = 2 * (worker.link.alpha_s + worker.link.beta_s * job.bytes) + add_s
    train_s = cell.every * worker.batch_s - worker.rested_s
    loop = ClosedLoop(cell.workers, train_s, (link_s, add_s, link_s), alone_s, overlaps=False)
    return cell.workers * cell.every * worker.samples / loop.cycle_s


def linear_rate(runs: Runs, cell: Cell, batch_s: float | None = None, single_per_s: float | None = None) -> float:
    """The baseline: workers times the rate of one, at most what the links of the servers carry.

    ``batch_s``: seconds of a batch, None: of one worker alone; ``single_per_s``: the measured rate of one worker, None:
    from its batch and its link.
    """
    alone = alone_of(runs, cell.network, cell.share)
    wire_s = alone["parameter_bytes"] * beta_of(runs, cell.mbit)
    if single_per_s is None:
        one_s = alone_s(runs, cell) if batch_s is None else batch_s
        single_per_s = cell.every * alone["samples"] / (cell.every * one_s - rested_s(cell.share) + 2 * wire_s)
    return min(cell.workers * single_per_s, cell.servers * cell.every * alone["samples"] / wire_s)


def errors(pairs: Iterable[tuple[float, float]]) -> np.ndarray:
    """Absolute errors of (predicted, measured), in per cent."""
    return np.array([100 * abs(predicted / measured - 1) for predicted, measured in pairs])

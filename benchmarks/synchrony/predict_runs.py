"""What measured jobs are predicted to do, from what was measured apart and constants of a part of the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import Cell, is_for_fit, steady_rate
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.loop import ClosedLoop
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes.place import WorkerPlace
from cdmpp.synchrony.progress import Progress
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker

Runs = Mapping[str, Mapping[str, Any]]
REPLAYS = 8
"""Seeds of a replay, whose batches vary as measured ones do; their mean is the prediction."""

TOGETHER, APART = "together", "apart"
"""How the workers of a replay begin."""


@dataclass(frozen=True)
class Constants:
    """Fitted on the part of the grid with one rate and one or two workers; the same for both networks."""

    commit_cpu_s: float
    """CPU seconds of a worker for one commit and pull; it takes 1 / share as long."""
    slow_down: float
    """Growth of the seconds of a batch with each further worker on the core."""
    add_bytes_per_s: float
    """Bytes that a server adds and copies in a second."""

    def to_dict(self) -> dict[str, float]:
        return vars(self)


def measured_cells(runs: Runs) -> list[tuple[Cell, Mapping[str, Any]]]:
    return [(Cell(**run["cell"]), run) for name, run in runs.items() if name.startswith("grid/")]


def fit(runs: Runs) -> Constants:
    """Fit the constants on the cells that are for it."""
    cells = [(cell, run) for cell, run in measured_cells(runs) if is_for_fit(cell)]
    slow, costs, adding = [], [], []
    for cell, run in cells:
        alone = alone_of(runs, cell.network, cell.share)
        adding.append(alone["parameter_bytes"] * sum(run["commits"]) / sum(run["server_busy_s"]))
        if cell.workers > 1:
            slow.append((np.mean(run["batch_s"]) / alone["batch_s"] - 1) / (cell.workers - 1))
            continue
        wire_s = 2 * alone["parameter_bytes"] * beta_of(runs, cell.mbit)
        cycle_s = cell.every * alone["samples"] / run["samples_per_s"]
        costs.append((cycle_s - cell.every * alone["batch_s"] - wire_s) * cell.share)
    return Constants(*(max(0.0, float(np.median(values))) for values in (costs, slow, adding)))


def alone_of(runs: Runs, network: str, share: float) -> Mapping[str, Any]:
    return runs[f"alone/{network}/{share:g}"]


def beta_of(runs: Runs, mbit: float) -> float:
    """Seconds a byte of a link, as it was measured with one stream."""
    return 8e-6 / runs[f"link/{mbit:g}"]["one_way"]


def job_of(runs: Runs, network: str, places: Sequence[WorkerPlace], servers: int, constants: Constants) -> Job:
    """The job as the replay takes it; all links have the rate of the first."""
    mbit = places[0].mbit
    assert mbit is not None
    beta, workers, parameter_bytes = beta_of(runs, mbit), [], 0.0
    for place in places:
        assert place.cpu_share is not None
        alone = alone_of(runs, network, place.cpu_share)
        parameter_bytes = alone["parameter_bytes"]
        # Half of a commit's cost is paid with the push and half with the pull.
        link = AlphaBeta(constants.commit_cpu_s / place.cpu_share / 2, beta)
        batch_s = alone["batch_s"] * (1 + constants.slow_down * (len(places) - 1))
        workers.append(Worker(batch_s, alone["samples"], alone["spread"], link))
    return Job(tuple(workers), parameter_bytes, (Server(AlphaBeta(0.0, beta), constants.add_bytes_per_s),) * servers)


class Watched(Synchrony):
    """Another synchrony, whose commits are kept: (seconds, batches, weight) by worker."""

    name = "watched"
    title = "another one, with an eye on it"

    def __init__(self, inner: Synchrony) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "commits", [])

    def decisions(self, workers: int) -> Decisions:
        inner: Any = self.inner.decisions(workers)  # type: ignore[attr-defined]
        commits: list[list[tuple[float, int, float]]] = self.commits  # type: ignore[attr-defined]
        commits[:] = [[] for _ in range(workers)]
        batches, weights = [0] * workers, [0.0] * workers
        after_batch, weight, applied = inner.after_batch, inner.weight, inner.applied

        def count(worker: int, now_s: float) -> Next:
            batches[worker] += 1
            return after_batch(worker, now_s)

        def weigh(worker: int, now_s: float) -> float:
            weights[worker] = weight(worker, now_s)
            return weights[worker]

        def keep(worker: int, now_s: float) -> Sequence[int]:
            commits[worker].append((now_s, batches[worker], weights[worker]))
            batches[worker] = 0
            return applied(worker, now_s)

        inner.after_batch, inner.weight, inner.applied = count, weigh, keep
        return inner


@dataclass(frozen=True)
class Replayed:
    """One replay: its outcome and all commits of each worker."""

    outcome: JobOutcome
    commits: Sequence[Sequence[tuple[float, int, float]]]

    def seconds_of(self, steps: float) -> float:
        """Seconds until the parameters have moved by so many batches' updates; infinite where they never do."""
        moved = 0.0
        for at_s, batches, weight in sorted(commit for own in self.commits for commit in own):
            moved += batches * weight
            if moved >= steps:
                return at_s
        return float("inf")


def replays(
    job: Job, synchrony: Synchrony, seconds: float, seeds: int = REPLAYS,
    loss: Callable[[Progress], float] | None = None,
) -> list[Replayed]:  # fmt: skip
    """Replay a job with several seeds."""
    found = []
    for seed in range(seeds):
        watched = Watched(synchrony)
        outcome = replay_job(job, watched, seconds=seconds, seed=seed, loss=loss)
        found.append(Replayed(outcome, [list(own) for own in watched.commits]))  # type: ignore[attr-defined]
    return found


def predicted_rate(
    runs: Runs, cell: Cell, constants: Constants, seconds: float, starts: str = APART, batch_s: float | None = None
) -> float:
    """Samples a second of a job of equal workers.

    ``starts``: ``TOGETHER``, or ``APART``: each worker begins a part of a round after the one before; ``batch_s``: the
    seconds of a batch, None: those of one worker alone.
    """
    job = job_of(runs, cell.network, cell.worker_places, cell.servers, constants)
    first, wire_s = job.workers[0], job.bytes * job.workers[0].link.beta_s
    batch_s = first.batch_s if batch_s is None else batch_s
    round_s = max(cell.every * batch_s + 2 * wire_s, cell.workers * wire_s / cell.servers)
    offset_s = round_s / cell.workers if starts == APART else 0.0
    workers = [replace(one, batch_s=batch_s, start_s=number * offset_s) for number, one in enumerate(job.workers)]
    found = replays(replace(job, workers=tuple(workers)), synchrony_of(f"async:{cell.every}"), seconds)
    rates = [sum(steady_rate([(at_s, batches) for at_s, batches, _ in own]) for own in one.commits) for one in found]
    return float(np.mean(rates)) * first.samples


def loop_rate(runs: Runs, cell: Cell, constants: Constants) -> float:
    """Samples a second of a job of equal workers by the closed form that machines are bought by."""
    job = job_of(runs, cell.network, cell.worker_places, cell.servers, constants)
    worker, part = job.workers[0], job.bytes / cell.servers
    link_s, add_s = worker.link.beta_s * part, part / constants.add_bytes_per_s
    alone_s = 2 * (worker.link.alpha_s + worker.link.beta_s * job.bytes) + add_s
    loop = ClosedLoop(cell.workers, cell.every * worker.batch_s, (link_s, add_s, link_s), alone_s, overlaps=False)
    return cell.workers * cell.every * worker.samples / loop.cycle_s


def linear_rate(runs: Runs, cell: Cell, single_per_s: float | None = None) -> float:
    """The baseline: workers times the rate of one, at most what the links of the servers carry.

    ``single_per_s``: the measured rate of one worker; None: from its batch and its link.
    """
    alone = alone_of(runs, cell.network, cell.share)
    wire_s = alone["parameter_bytes"] * beta_of(runs, cell.mbit)
    if single_per_s is None:
        single_per_s = cell.every * alone["samples"] / (cell.every * alone["batch_s"] + 2 * wire_s)
    return min(cell.workers * single_per_s, cell.servers * cell.every * alone["samples"] / wire_s)


def errors(pairs: Iterable[tuple[float, float]]) -> np.ndarray:
    """Absolute errors of (predicted, measured), in per cent."""
    return np.array([100 * abs(predicted / measured - 1) for predicted, measured in pairs])

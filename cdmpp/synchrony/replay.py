"""Replay of a job: its workers and servers under a synchrony, run by the event engine."""

from __future__ import annotations

import math
from collections.abc import Callable

from cdmpp.errors import UsageError
from cdmpp.platform.limits import SEED, Limits, checked, numbers
from cdmpp.simulate.engine import simulate
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.job_run import JobRun
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.progress import STALENESS_PENALTY, Progress


@checked(
    seconds=numbers(0, 1e9, "seconds", above=True), commits=Limits(1, 2**40, "commits"), seed=SEED,
    staleness_penalty=STALENESS_PENALTY,
)  # fmt: skip
def replay_job(
    job: Job, synchrony: Synchrony, seconds: float | None = None, commits: int | None = None, seed: int = 0,
    loss: Callable[[Progress], float] | None = None, staleness_penalty: float = 0.0,
) -> JobOutcome:  # fmt: skip
    """Run a job until ``seconds`` are over or the servers have added so many ``commits``, whichever is first.

    All workers begin with the same parameters. What is under way at the end counts for nothing.

    Args:
        job: workers, servers and links.
        synchrony: when workers commit and pull.
        seconds: of the job.
        commits: of all workers.
        seed: of the seconds of batches, where workers have a spread.
        loss: the loss by progress, for a synchrony that goes by it. As in a real job it sees the mean of the batches
            since its last look, each by the weighted samples that its worker had pulled and has trained since.
        staleness_penalty: an update counts ``1 / (1 + penalty x weight x staleness)`` of its weighted samples in
            ``Progress.weighted_samples``; ``loss.time_to_loss`` says why.

    Raises:
        UsageError: neither seconds nor commits, a synchrony that needs a loss and has none, and a worker that ends no
            batch in ``seconds``.
    """
    if seconds is None and commits is None:
        raise UsageError("neither seconds nor commits are given: say how long the job runs")
    for number, worker in enumerate(job.workers):
        if seconds is not None and worker.batch_s > seconds:
            raise UsageError(
                f"worker {number} ends no batch: one takes it {worker.batch_s:g} s and the job runs for {seconds:g} s. "
                "Leave it out, or run longer"
            )
    run = JobRun(
        job,
        synchrony.decisions(len(job.workers)),
        math.inf if seconds is None else seconds,
        commits,
        seed,
        loss,
        staleness_penalty,
    )
    if run.decisions.check_s is not None and loss is None:
        raise UsageError(f"synchrony {synchrony.name} decides by the loss: give a loss curve")
    simulate(run.start(), run.ended, job.rates, keep=False)
    return run.outcome()

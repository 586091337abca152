"""Replay of a configuration: its replicas are the workers of a job, and its servers the servers."""

from __future__ import annotations

from statistics import fmean

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.pace import Pace
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.starts import begun
from cdmpp.synchrony.worker import Server, Worker

COMMITS = 200
"""Commits of each replica in a replay, of which the first half is left out."""
REPLAYS = 3
"""Replays of a configuration, whose replicas begin at other moments where they do so by chance."""


def job_of(question: ProvisioningQuestion, configuration: Configuration) -> Job:
    """Return the job of a configuration.

    A worker is a replica, and a batch of it are the batches between two commits. The machines of a replica push at the
    same time, so that its link is that of the machine that pushes most.
    """
    replica = question.replica(configuration.machines_per_replica)
    sizes, link = replica.pushed_bytes, question.link
    worker = Worker(
        Pace(question, configuration).train_s,
        question.commit_every * question.batch,
        question.spread * question.commit_every**-0.5,
        AlphaBeta(link.alpha_s / 2, link.beta_s * max(sizes) / sum(sizes)),
    )
    server = Server(link.end, question.add_bytes_per_s)
    return Job((worker,) * configuration.replicas, sum(sizes), (server,) * configuration.servers, question.overlaps)


def replayed(question: ProvisioningQuestion, configuration: Configuration, seed: int = 0) -> tuple[float, JobOutcome]:
    """Replay a configuration for ``COMMITS`` commits of each replica, which begin as ``begun`` says.

    Returns:
        Examples a second of all replicas in the second half, the mean over replays, and the outcome of the first.
    """
    job, commits = job_of(question, configuration), COMMITS * configuration.replicas
    outcomes, rates = list[JobOutcome](), list[float]()
    for number in range(1 if question.has_rounds else REPLAYS):
        one = begun(job, question.synchrony, seed + number)
        outcomes.append(replay_job(one, question.synchrony, commits=commits, seed=seed + number))
        points = outcomes[-1].progress
        middle, last = points[len(points) // 2], points[-1]
        rates.append((last.samples - middle.samples) / (last.seconds - middle.seconds))
    return fmean(rates), outcomes[0]

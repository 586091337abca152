"""Replay of a configuration: its replicas are the workers of a job, and its servers the servers."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.pace import Pace
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker

COMMITS = 200
"""Commits of each replica in a replay, of which the first half is left out."""


def job_of(question: ProvisioningQuestion, configuration: Configuration) -> Job:
    """Return the job of a configuration.

    A worker is a replica, and a batch of it are the batches between two commits. The machines of a replica push at the
    same time, so that its link is that of the machine that pushes most. Replicas that do not wait for all others begin
    one after another within one cycle: those that begin together would go on in step.
    """
    replica = question.replica(configuration.machines_per_replica)
    sizes, link = replica.pushed_bytes, question.link
    pace, replicas = Pace(question, configuration), configuration.replicas
    later_s = 0.0 if question.has_rounds else pace.cycle_s / replicas
    worker = Worker(
        pace.train_s,
        question.commit_every * question.batch,
        question.spread * question.commit_every**-0.5,
        AlphaBeta(link.alpha_s / 2, link.beta_s * max(sizes) / sum(sizes)),
    )
    server = Server(link.end, question.add_bytes_per_s)
    workers = tuple(replace(worker, start_s=number * later_s) for number in range(replicas))
    return Job(workers, sum(sizes), (server,) * configuration.servers, question.overlaps)


def replayed(question: ProvisioningQuestion, configuration: Configuration, seed: int = 0) -> tuple[float, JobOutcome]:
    """Replay a configuration for ``COMMITS`` commits of each replica.

    Returns:
        Examples a second of all replicas in the second half, and the outcome of the whole replay.
    """
    found = replay_job(
        job_of(question, configuration), question.synchrony, commits=COMMITS * configuration.replicas, seed=seed
    )
    points = found.progress
    middle, last = points[len(points) // 2], points[-1]
    return (last.samples - middle.samples) / (last.seconds - middle.seconds), found

"""Replays of ADSP's public jobs: a push and a pull of each worker take seconds of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.synchrony.adsp_rows import Protocol
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.policies.adsp import ADSP
from cdmpp.synchrony.policies.local_sgd import LocalSGD
from cdmpp.synchrony.policies.stale_synchronous import StaleSynchronous
from cdmpp.synchrony.policies.synchronous import Synchronous
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Worker

WORKERS = 3
"""Workers of the runs under SSP; the file does not say it, the other table of waiting times has three."""
SLACK = 40


def replayed(
    batch_s: Sequence[float], synchrony: Synchrony, exchange_s: float | Sequence[float] = 0.0, **until: Any
) -> JobOutcome:
    """Replay workers whose push and pull take ``exchange_s`` together, one number for all or one for each."""
    each = [exchange_s] * len(batch_s) if isinstance(exchange_s, float) else exchange_s
    workers = (
        Worker(float(one), 1, link=AlphaBeta(float(exchange) / 2, 0.0))
        for one, exchange in zip(batch_s, each, strict=True)
    )
    return replay_job(Job(tuple(workers), 4.0), synchrony, **until)


def rounds_of(one: Protocol) -> float:
    """Return the commits of a worker: of every batch, or of every ``SLACK`` under ADACOMM."""
    return one.steps / WORKERS / (SLACK if "ADACOMM" in one.name else 1)


def of_protocol(one: Protocol, batch_s: Sequence[float], exchange_s: float | Sequence[float] = 0.0) -> JobOutcome:
    """Replay a printed protocol: ADSP for as long as it ran, the others for as many steps."""
    if one.name == "ADSP":
        return replayed(batch_s, ADSP(commits_per_check=1), exchange_s, seconds=one.seconds)
    if "ADACOMM" in one.name:
        return replayed(batch_s, LocalSGD(every=SLACK), exchange_s, commits=round(one.steps / SLACK))
    return replayed(
        batch_s, Synchronous() if one.name == "BSP" else StaleSynchronous(SLACK), exchange_s, commits=one.steps
    )

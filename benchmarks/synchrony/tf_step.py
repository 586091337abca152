"""Steps of several GPUs that share one host, and of several machines that are each other's parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.plans.scores import least_absolute
from benchmarks.synchrony.tf_rows import Job, Row

PARTS = (
    "any synchronisation, a share of the step of one GPU",
    "push and pull over the GPU's own link, s/GB",
    "push and pull over the host's link for each further GPU, s/GB",
    "host for each further GPU, s",
    "input pipeline for each further image of real data, s",
)
ADAPTER_BYTES_PER_S = 1.25e9
"""The adapter of a p2.8xlarge by its datasheet, 10 Gbit/s."""


def parts(row: Row, single_s: float) -> np.ndarray:
    """Return what the factors of ``PARTS`` multiply on more than one GPU, shape (5,).

    Args:
        row: the job.
        single_s: its step on one GPU.
    """
    further, size = row.gpus - 1, row.bytes / 1e9
    images = row.batch * further if row.is_real else 0
    return np.array([single_s, size, size * further, further, images], float)


def fit(seen: Sequence[Row], single_s: Mapping[Job, float]) -> np.ndarray:
    """Fit the five factors of one host, none below 0, to jobs on more than one GPU."""
    ones = np.array([single_s[row.job] for row in seen])
    columns = np.array([parts(row, one) for row, one in zip(seen, ones, strict=True)])
    return least_absolute(columns, ones, np.array([row.step_s for row in seen]))


def step_s(row: Row, single_s: Mapping[Job, float], factors: np.ndarray) -> float:
    """Return the step of a job on several GPUs of one host."""
    one = single_s[row.job]
    return float(one + parts(row, one) @ factors)


def adapter_bytes(machines: int, servers: int, n_bytes: int) -> float:
    """Return the bytes that the busiest adapter receives in a step; it sends as many.

    Each machine pushes its sum of gradients to all servers and pulls all parameters. A server receives its share from
    all machines but its own, and its own machine pulls the shares of the other servers.
    """
    share = n_bytes / servers
    return share * (machines - 1) + n_bytes - share


def many_s(row: Row, known: Row) -> float:
    """Return the step on more machines: that of fewer, and what the busiest adapter receives beyond.

    What the known number of machines hides stays hidden, and nothing more is.
    """
    grown = adapter_bytes(row.machines, row.servers, row.bytes) - adapter_bytes(
        known.machines, known.servers, known.bytes
    )
    return known.step_s + max(0.0, grown) / ADAPTER_BYTES_PER_S

"""What the authors of ADSP measured: a run of 18 workers, five protocols on three, stale synchrony on uneven ones.

Repository joapolarbear/adsp, snapshot 4066c9d; it has no licence, so only its numbers are read, from the folder
``adsp`` of ``--data``, and no row of it is shown.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError

CHANGED_S = 900.0
"""Before this the run had its first snapshot, after which a sleep was put into seven workers."""


@dataclass(frozen=True)
class Span:
    """The run of 18 workers between two snapshots."""

    seconds: NDArray[np.float64]
    """Seconds of each worker by its own clock, which stands still in evaluations."""
    batch_s: NDArray[np.float64]
    """Seconds of a batch of each worker, from the mean of its speeds at both ends."""
    steps: float
    """Mean over workers."""
    commits: float


@dataclass(frozen=True)
class Protocol:
    """Three workers under one protocol until they reach a loss."""

    name: str
    seconds: float
    steps: int
    """Steps of all workers together."""
    compute_s: tuple[float, float, float]
    """Seconds in which each worker trained."""
    blocked_s: float
    """Mean seconds in which a worker stood still; exchanges are part of it."""


def spans(data: Path) -> list[Span]:
    """Read the time between each two snapshots of the run of 18 workers."""
    progress = {round(float(row["wall_s"])): row for row in _rows(data, "run18_progress.csv")}
    shots = dict[int, list[dict[str, str]]]()
    for row in _rows(data, "run18_workers.csv"):
        shots.setdefault(round(float(row["wall_s"])), []).append(row)
    if list(shots) != list(progress):
        raise DataError("adsp: run18_workers.csv and run18_progress.csv have snapshots at other times")
    found = []
    for first, last in pairwise(shots):
        speeds, clocks = (
            [np.array([float(row[name]) for row in shots[wall]]) for wall in (first, last)]
            for name in ("batch_s", "worker_elapsed_s")
        )
        usable = [1 / one for one, wall in zip(speeds, (first, last), strict=True) if wall > CHANGED_S]
        steps, commits = (
            float(progress[last][name]) - float(progress[first][name])
            for name in ("mean_steps_per_worker", "mean_commits_per_worker")
        )
        found.append(Span(clocks[1] - clocks[0], 1 / np.mean(usable, axis=0), steps, commits))
    return found


def protocols(data: Path) -> list[Protocol]:
    """Read the protocols on three workers."""
    return [
        Protocol(
            row["protocol"],
            float(row["time_to_loss_s"]),
            int(row["steps"]),
            (float(row["compute_s_worker0"]), float(row["compute_s_worker1"]), float(row["compute_s_worker2"])),
            float(row["blocked_s"]),
        )
        for row in _rows(data, "protocols_3workers.csv")
    ]


def heterogeneity(data: Path) -> list[tuple[float, float]]:
    """Read pairs of mean speed by lowest speed, and the part of the time that a worker waits under ssp:40."""
    return [(float(row["H"]), float(row["ssp40_waiting_ratio"])) for row in _rows(data, "heterogeneity.csv")]


def slacks(data: Path) -> list[tuple[int, float, float]]:
    """Read slacks with the seconds to the loss of even workers, and of uneven ones."""
    return [
        (int(row["slack"]), float(row["homogeneous_time_s"]), float(row["heterogeneous_time_s"]))
        for row in _rows(data, "ssp_slack.csv")
    ]


def _rows(data: Path, name: str) -> list[dict[str, str]]:
    with (data / "adsp" / name).open(newline="") as file:
        return list(csv.DictReader(file))

"""How well measured jobs repeat: batches without servers from job to job, and jobs of one setting measured twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import NETWORKS, SHARES, Cell
from benchmarks.synchrony.trainings import BATCH_CPU_S

Runs = Mapping[str, Mapping[str, Any]]


def batch_rows(runs: Runs) -> list[list[str]]:
    """Batches of the workers of each job without servers, by network, share and workers: how jobs differ."""
    rows = []
    for network in NETWORKS:
        for share in SHARES:
            for workers in (1, 2, 3, 4):
                means = [
                    1e3 * float(np.nanmean([run["batch_before_s"], run["batch_after_s"]]))
                    for name, run in runs.items()
                    if name.startswith(("grid/", "again/"))
                    and [run["cell"][field] for field in ("network", "share", "workers")] == [network, share, workers]
                ]
                if means:
                    off = 100 * abs(np.array(means) / np.mean(means) - 1)
                    rows.append(
                        [network, f"{share:g}", str(workers), str(len(means)), f"{np.mean(means):.1f}",
                         f"{np.mean(off):.1f}", f"{np.max(off):.1f}"]
                    )  # fmt: skip
    return rows


def pairs(runs: Runs) -> list[tuple[Cell, float, float]]:
    """Cells that were measured twice, with the samples a second of both runs."""
    found = []
    for name, run in runs.items():
        again = runs.get(name.replace("grid/", "again/", 1))
        if name.startswith("grid/") and again is not None:
            found.append((Cell(**run["cell"]), float(run["samples_per_s"]), float(again["samples_per_s"])))
    return found


def repeat_rows(runs: Runs) -> list[list[str]]:
    """How far the two runs of a cell are from each other, as a part of their mean, by workers."""
    rows, found = [], pairs(runs)
    for part in ("1", "2", "3", "4", "all"):
        apart = [100 * abs(a - b) / ((a + b) / 2) for cell, a, b in found if part in (str(cell.workers), "all")]
        if apart:
            figures = (np.mean(apart), np.median(apart), np.max(apart), np.mean(apart) / 2)
            rows.append([part, str(len(apart)), *(f"{figure:.1f}" for figure in figures)])
    return rows


def tables(runs: Runs, commands: Sequence[str]) -> list[dict[str, Any]]:
    """The tables of the page; none where nothing was measured before and after a job."""
    batches = batch_rows(runs) if any("batch_before_s" in run for run in runs.values()) else []
    if not batches:
        return []
    host = runs["host"]
    quiet, busy = (
        [run["other_programs"] for name, run in runs.items() if name.startswith(parts)]
        for parts in (("grid/", "policies/"), "again/")
    )
    around = (
        f"All on one host: {host['model name']}, family {host['cpu family']}, model {host['model']}, {host['cores']} "
        f"virtual cores, Linux {host['kernel']}. Workers share one core, servers and the process that decides the "
        "other. The speed of these cores drifts: of seconds of the CPU, a fixed loop of additions took 8.7 ms and, a "
        f"minute later, 6.2 ms. So each batch trains, about 10 ms, and then counts until it has had "
        f"{1e3 * BATCH_CPU_S:.0f} ms of the CPU: it lasts that long divided by the share. Before this was seen, 29 "
        "jobs had been measured without it; within one job their batches were up to 22 % slower or 16 % faster than "
        "right before and after it, and no figure here uses them. Other programs were stopped and took "
        f"{np.mean(quiet):.1%} of one core on average, {np.max(quiet):.0%} in the worst run"
        + (f"; in the second runs of the grid they were not, and took {np.mean(busy):.1f} cores" if busy else "")
        + ". Of links, one queue "
        "for all workers was tried before classes (htb), and classes with buckets of 32 KB before those of 4 KB: both "
        "were left because pushes of several workers did not share a link equally, after jobs measured with them had "
        "been seen. Below, the seconds of a batch of the same workers without servers, before and after each job, and "
        "how far jobs are from the mean of their kind."
    )
    apart = (
        "The difference of two runs of one setting, as a part of their mean. Who predicts the mean of both without any "
        "error is on average half of it from a single run: the floor."
    )
    return [
        {
            "title": "Noise of the measurements", "note": around, "commands": [],
            "columns": ["network", "share", "workers", "jobs", "batch, ms", "off, mean %", "off, worst %"],
            "rows": batches,
        },
        {
            "title": "Noise of the measurements", "note": apart, "commands": [],
            "columns": ["workers", "settings", "mean %", "median %", "worst %", "floor %"], "rows": repeat_rows(runs),
        },
    ]  # fmt: skip

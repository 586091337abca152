"""Waiting of ADSP's three workers as its authors clock it: exchanges of the worker are no part, those of others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.synchrony.adsp_replays import SLACK, WORKERS, of_protocol, rounds_of
from benchmarks.synchrony.adsp_rows import Protocol

WAYS = ("no exchanges", "exchanges alike", "exchanges as slow as batches", "the same, pulls of who is a slack ahead")


def exchanges(one: Protocol, way: str) -> list[float] | None:
    """Return the seconds of a push and a pull of each worker, of the printed time and not of the printed waiting.

    The slowest worker waits for nobody, so what its clock has beyond its training are exchanges.

    Args:
        one: a protocol with a barrier or a slack.
        way: one of ``WAYS``.

    Returns:
        (3,) seconds; None where a way does not hold for the protocol.
    """
    compute = np.array(one.compute_s)
    slowest_s = (one.seconds - compute.max()) / rounds_of(one)
    if way == WAYS[0]:
        return [0.0] * WORKERS
    if way == WAYS[1]:
        return [slowest_s] * WORKERS
    shares = compute / compute.max()
    if way == WAYS[2]:
        return list(slowest_s * shares)
    if not one.name.startswith("SSP"):
        return None
    pulls = np.where(shares < 1, 2.0, 1.0 + 1.0 / SLACK)
    return list(slowest_s * shares * pulls / pulls.min())


def blocked_table(
    found: Sequence[Protocol], batches: Sequence[Sequence[float]], source: str, commands: list[str]
) -> dict[str, Any]:
    """Judge the printed waiting of all protocols that wait, by each of ``WAYS``.

    Args:
        found: the protocols.
        batches: (3,) seconds of a batch of each worker, for each protocol.
        source: where the rows are from.
        commands: what writes the table.
    """
    rows = []
    for one, batch_s in zip(found, batches, strict=True):
        if not one.blocked_s:
            continue
        cells = list[str]()
        for way in WAYS:
            seconds = exchanges(one, way)
            if seconds is None:
                cells.append("")
                continue
            outcome = of_protocol(one, batch_s, seconds)
            waiting_s = float(np.mean([worker.waiting_s for worker in outcome.workers]))
            cells.append(f"{100 * (waiting_s / one.blocked_s - 1):+.1f}")
        rows.append([one.name, f"{100 * (1 - max(one.compute_s) / one.seconds):.0f}", *cells])
    return {
        "title": "ADSP: waiting as its authors clock it",
        "note": (
            f"{source} Their code clocks waiting at the server, from a worker's request for parameters until the "
            "slowest push that it needs is in: no exchange of its own, but those of the slowest worker. The slowest "
            "worker waits for nobody, so what its time to the loss has beyond its training are exchanges: the second "
            "column, in per cent of the time, with pauses for evaluations. From these, and never from the printed "
            "waiting, come seconds of a push and a pull: alike for all workers, or in proportion to their batches, as "
            "on machines that are slow in everything. In their SSP a worker always pushes and pulls only when it is a "
            "slack ahead: the last column, with pulls as long as pushes."
        ),
        "commands": commands,
        "columns": ["protocol", "exchanges of the slowest, %", *(f"{way}: off, %" for way in WAYS)],
        "rows": rows,
    }

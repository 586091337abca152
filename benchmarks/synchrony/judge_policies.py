"""Predicted and measured jobs of four uneven workers under each policy: samples, commits, waiting, time to a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import POLICIES, POLICY_NETWORK, UNEVEN, uneven_places
from benchmarks.synchrony.predict_runs import Constants, Replayed, Runs, errors, job_of, replays
from cdmpp.synchrony.progress import Progress

TARGET_LOSS = 1.0


def by_policy(runs: Runs) -> dict[str, list[Mapping[str, Any]]]:
    """The measured runs of each policy, a seed each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, run in runs.items():
        if name.startswith("policies/"):
            found.setdefault(run["policy"], []).append(run)
    return found


def steps_to_loss(single: Sequence[Mapping[str, Any]]) -> float:
    """Batches that one worker alone, who waits for nobody, needs to the target; the mean over seeds."""
    counts = []
    for run in single:
        samples = run["samples"][0] / run["batches"][0]
        counts.append(_crossing([(at / samples, loss) for _, at, loss in run["loss"]]))
    return float(np.mean(counts))


def _crossing(points: Sequence[tuple[float, float]]) -> float:
    """Where the loss first falls to the target, between two points; infinite where it never does."""
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if y1 <= TARGET_LOSS < y0:
            return x0 + (x1 - x0) * (y0 - TARGET_LOSS) / (y0 - y1)
    return float("inf")


def loss_by_steps(single: Sequence[Mapping[str, Any]], samples: int) -> Callable[[Progress], float]:
    """The loss that a policy sees in the replay: that of one worker after as many batches as all workers averaged."""
    grid = np.linspace(0, max(run["batches"][0] for run in single), 200)
    curves = []
    for run in single:
        steps, losses = np.array([[at, loss] for _, at, loss in run["loss"]]).T
        curves.append(np.interp(grid, steps / samples, losses))
    mean = np.mean(curves, axis=0)
    return lambda progress: float(np.interp(progress.samples / samples / len(UNEVEN), grid, mean))


def predicted(runs: Runs, constants: Constants) -> dict[str, list[Replayed]]:
    measured, found = by_policy(runs), {}
    job = job_of(runs, POLICY_NETWORK, uneven_places(), 1, constants)
    for name, synchrony in POLICIES.items():
        if name in measured:
            loss = loss_by_steps(measured["one"], job.workers[0].samples)
            loss_or_none = loss if synchrony.decisions(len(UNEVEN)).check_s is not None else None
            found[name] = replays(job, synchrony, measured[name][0]["seconds_s"], loss=loss_or_none)
    return found


def tables(runs: Runs, constants: Constants, commands: Sequence[str]) -> list[dict[str, Any]]:
    """The tables of the page."""
    measured, replayed = by_policy(runs), predicted(runs, constants)
    steps = steps_to_loss(measured["one"])
    counts, times, rows = [], {}, []
    for name, found in replayed.items():
        own = measured[name]
        seconds = own[0]["seconds_s"]
        wrong = {}
        for what in ("samples", "commits"):
            was = np.mean([run[what] for run in own], axis=0)
            says = np.mean([[getattr(one, what) for one in replay.outcome.workers] for replay in found], axis=0)
            wrong[what] = errors(zip(says, was, strict=True))
        waited = 100 * np.mean([run["waiting_s"] for run in own], axis=0) / seconds
        waits = 100 * np.mean([[one.waiting_s for one in replay.outcome.workers] for replay in found], axis=0) / seconds
        counts.append((name, wrong, waited, waits))
        reached = [_crossing([(at_s, loss) for at_s, _, loss in run["loss"]]) for run in own]
        times[name] = (
            float(np.mean([replay.seconds_of(steps) for replay in found])),
            float(np.mean(reached)),
            f"{np.isfinite(reached).sum()} of {len(reached)}",
        )
        rows.append(
            [name, str(len(own)), *(f"{np.mean(wrong[what]):.1f}" for what in wrong),
             *(f"{np.max(wrong[what]):.1f}" for what in wrong), " ".join(f"{one:.0f}" for one in waited),
             " ".join(f"{one:.0f}" for one in waits), f"{np.max(abs(waits - waited)):.1f}"]
        )  # fmt: skip
    pairs = list(combinations(times, 2))
    right = sum((times[a][0] < times[b][0]) == (times[a][1] < times[b][1]) for a, b in pairs)
    orders = [sorted(times, key=lambda name: times[name][which]) for which in (0, 1)]
    loss_rows = [
        [name, _seconds(says), _seconds(was), seeds,
         f"{100 * (says / was - 1):+.0f}" if np.isfinite(was) and np.isfinite(says) else "–"]
        for name, (says, was, seeds) in times.items()
    ]  # fmt: skip
    first = next(iter(measured.values()))
    note = (
        "Four workers with 0.28, 0.28, 0.14 and 0.07 of one core (100, 100, 50 and 25 %), links of 200 Mbit/s, one "
        f"server, the CNN; {len(first)} seeds of {first[0]['seconds_s']:g} s. ADSP: four commits of a worker in 6 s, "
        "at least 1 s apart, in place of periods of 60 s and 10 s. Predicted from a batch of each share alone and the "
        "constants of the grid. Errors: of the mean over seeds, mean and worst over the four workers. Waiting: per "
        "cent of the time of each worker."
    )
    loss_note = (
        f"Seconds to a held-out loss of {TARGET_LOSS:g}. Here the replay ends and an assumption begins: that the "
        "parameters of all policies reach it once they were moved by as many batches (weight times batches of each "
        f"commit) as one worker alone needs, {steps:.0f} on average over seeds. Order of the policies, predicted: "
        f"{', '.join(orders[0])}; measured: {', '.join(orders[1])}; {right} of {len(pairs)} pairs are in the right "
        "order."
    )
    columns = [
        "policy", "seeds", "samples, mean %", "commits, mean %", "samples, worst %", "commits, worst %",
        "waiting, measured %", "waiting, predicted %", "waiting, worst points",
    ]  # fmt: skip
    return [
        {
            "title": "Policies on uneven workers", "note": note, "commands": list(commands), "columns": columns,
            "rows": rows,
        },
        {
            "title": "Time to a loss", "note": loss_note, "commands": [],
            "columns": ["policy", "predicted s", "measured s", "seeds that reach it", "error %"], "rows": loss_rows,
        },
    ]  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "not reached"

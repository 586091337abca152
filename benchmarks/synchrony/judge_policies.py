"""Predicted and measured jobs of four uneven workers under each policy: samples, commits, waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import POLICIES, POLICY_NETWORK, POLICY_S, UNEVEN, uneven_places
from benchmarks.synchrony.predict_runs import Constants, Run, Runs, alone_of, errors, job_of
from benchmarks.synchrony.watched import Replayed, replays
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.progress import Progress

_REPLAYS = 3
"""Replays of each measured run."""


def by_policy(runs: Runs) -> dict[str, list[Run]]:
    """The measured runs of each policy, a seed each."""
    found: dict[str, list[Run]] = {}
    for name, run in runs.items():
        if name.startswith("policies/"):
            found.setdefault(run["policy"], []).append(run)
    return found


def loss_by_steps(single: Sequence[Run]) -> Callable[[Progress], float]:
    """The loss that a policy sees in the replay: that of one worker after as many weighted batches."""
    samples = single[0]["samples"][0] / single[0]["batches"][0]
    grid = np.linspace(0, max(run["batches"][0] for run in single), 200)
    curves = []
    for run in single:
        steps, losses = np.array([[at, loss] for _, at, loss in run["loss"]]).T
        curves.append(np.interp(grid, steps / samples, losses))
    mean = np.mean(curves, axis=0)
    return lambda progress: float(np.interp(progress.weighted_samples / samples, grid, mean))


def job_around(runs: Runs, run: Run, constants: Constants) -> Job:
    """The job of a run, with batches of the same workers without servers, right before it and after it."""
    places, between = uneven_places(), [runs[name]["batch_s"] for name in run.get("between", ()) if name in runs]
    seconds = np.mean(between, axis=0) if between else _alone(runs)
    return job_of(runs, POLICY_NETWORK, places, list(seconds), 1, constants)


def _alone(runs: Runs) -> np.ndarray:
    shares = [place.cpu_share for place in uneven_places()]
    return np.array([alone_of(runs, POLICY_NETWORK, share)["batch_s"] for share in shares if share is not None])


def predicted(runs: Runs, constants: Constants, penalty: float = 0.0) -> dict[str, list[Replayed]]:
    """Replay each measured run; ``penalty``: of stale updates, where a policy goes by the loss and for its progress."""
    measured, found = by_policy(runs), {}
    loss = loss_by_steps(measured["one"])
    for name, synchrony in POLICIES.items():
        own = list[Replayed]()
        needs_loss = name in measured and synchrony.decisions(len(UNEVEN)).check_s is not None
        for run in measured.get(name, ()):
            job = job_around(runs, run, constants)
            given = loss if needs_loss else None
            own += replays(job, synchrony, run["seconds_s"], _REPLAYS, given, staleness_penalty=penalty)
        if own:
            found[name] = own
    return found


def policy_table(runs: Runs, constants: Constants, commands: Sequence[str]) -> dict[str, Any]:
    """The table of samples, commits and waiting."""
    measured, rows = by_policy(runs), []
    for name, found in predicted(runs, constants).items():
        own = measured[name]
        wrong = {what: _off(found, own, what) for what in ("samples", "commits")}
        waited, waits = (100 * one for one in _waiting(found, own))
        rows.append(
            [name, str(len(own)), *(f"{np.mean(wrong[what]):.1f}" for what in wrong),
             *(f"{np.max(wrong[what]):.1f}" for what in wrong), " ".join(f"{one:.0f}" for one in waited),
             " ".join(f"{one:.0f}" for one in waits), f"{np.max(abs(waits - waited)):.1f}"]
        )  # fmt: skip
    note = (
        "Four workers with 0.28, 0.28, 0.14 and 0.07 of one core (100, 100, 50 and 25 %), links of 200 Mbit/s, one "
        f"server, the CNN; jobs of {POLICY_S:g} s, a seed each. Their settings are shortened: "
        "ADSP has four commits of a worker in 6 s, at least 1 s apart, in place of periods of 60 s and 10 s. "
        "Predicted from batches of the same workers without servers, before and after each job, and the constants of "
        "the grid. Errors: of the mean over seeds, mean and worst over the workers that have any. Waiting: per cent of "
        "the time of each worker."
    )
    columns = [
        "policy", "seeds", "samples, mean %", "commits, mean %", "samples, worst %", "commits, worst %",
        "waiting, measured %", "waiting, predicted %", "waiting, worst points",
    ]  # fmt: skip
    return {
        "title": "Policies on uneven workers", "note": note, "commands": list(commands), "columns": columns,
        "rows": rows,
    }  # fmt: skip


def _off(found: Sequence[Replayed], own: Sequence[Run], what: str) -> np.ndarray:
    was = np.mean([run[what] for run in own], axis=0)
    says = np.mean([[getattr(one, what) for one in replay.outcome.workers] for replay in found], axis=0)
    return errors((one, own) for one, own in zip(says, was, strict=True) if own)


def _waiting(found: Sequence[Replayed], own: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Parts of the time in which each worker waited, measured and predicted."""
    was = np.mean([run["waiting_s"] for run in own], axis=0) / own[0]["seconds_s"]
    says = np.mean([[one.waiting_s for one in replay.outcome.workers] for replay in found], axis=0)
    return was, says / own[0]["seconds_s"]

"""Replays of what the authors of ADSP measured: steps, commits and waiting from the printed seconds of batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synchrony.adsp_blocked import blocked_table
from benchmarks.synchrony.adsp_replays import SLACK, WORKERS, of_protocol, replayed, rounds_of
from benchmarks.synchrony.adsp_rows import Protocol, Span, heterogeneity, protocols, slacks, spans
from cdmpp.synchrony.policies.adsp import ADSP
from cdmpp.synchrony.policies.stale_synchronous import StaleSynchronous

_COMMANDS = ["python -m benchmarks.synchrony adsp --data FOLDER --publish"]
_SOURCE = (
    "Numbers of the repository of the authors of ADSP (snapshot 4066c9d, one run each); it has no licence, so that "
    "only what is off is shown here."
)
_SLOW_STEPS = 2000
"""Steps of the slowest worker in a replay, many times the slack."""
_LONG_S = 7200.0
CHECK_S = 60.0
"""Their workers commit once in so many seconds, where the search begins."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the rows of the folder ``adsp`` of ``data``."""
    three = protocols(data)
    batches = [_batches(three, one) for one in three]
    return [
        _run(spans(data)),
        _three(three, batches),
        blocked_table(three, batches, _SOURCE, _COMMANDS),
        _uneven(heterogeneity(data)),
        _slack(slacks(data)),
    ]


def _run(found: Sequence[Span]) -> dict[str, Any]:
    rows, minutely = [], 1.0
    for one in found:
        outcome = replayed(one.batch_s, ADSP(commits_per_check=1, check_s=CHECK_S / minutely), seconds=_LONG_S)
        share = one.seconds / outcome.seconds
        steps, commits = (
            float(np.mean(share * [getattr(worker, name) for worker in outcome.workers]))
            for name in ("batches", "commits")
        )
        rows.append(
            [f"{one.seconds.mean():.0f}", _off(steps, one.steps), f"{minutely:g}", _off(commits, one.commits),
             f"{100 * outcome.waiting_share:.1f}"]
        )  # fmt: skip
        minutely = max(1.0, round(2 * one.commits * CHECK_S / one.seconds.mean()) / 2)
    return {
        "title": "ADSP: a run of 18 workers",
        "note": (
            f"{_SOURCE} Each row is the time between two snapshots; steps and commits are means of the workers, "
            "which is all that the file has. The seconds of each worker's batches are the mean of its speeds at "
            "both snapshots; of the first one only the later, since a sleep was put into seven workers in between. "
            "Time is that of each worker's own clock: evaluations and searches stand between snapshots. Commits a "
            "minute are 1 where the search over them begins, then those of the row before, to halves. The search "
            "itself is not in the file: it raised them to 1.5 within the fourth row, which is why commits are off "
            "there and in the fifth."
        ),
        "commands": _COMMANDS,
        "columns": [
            "seconds of the span", "steps off, %", "commits a minute", "commits off, %", "waiting by cdmpp, %",
        ],
        "rows": rows,
    }  # fmt: skip


def _batches(found: Sequence[Protocol], judged: Protocol) -> list[float]:
    """Return the seconds of a batch of each worker, by the other protocols but ADSP, the last."""
    others = [other for other in found if other not in (judged, found[-1])]
    return list(WORKERS * np.mean([np.array(other.compute_s) / other.steps for other in others], axis=0))


def _three(found: Sequence[Protocol], batches: Sequence[Sequence[float]]) -> dict[str, Any]:
    rows, fixed = [], next(one for one in found if "tau" in one.name)
    exchange_s = (fixed.blocked_s - max(fixed.compute_s) + float(np.mean(fixed.compute_s))) / rounds_of(fixed)
    runs = [(one, batch_s, 0.0) for one, batch_s in zip(found, batches, strict=True)]
    for one, batch_s, exchange in [*runs, (found[-1], batches[-1], exchange_s)]:
        outcome = of_protocol(one, batch_s, exchange)
        computed = [worker.batches * seconds for worker, seconds in zip(outcome.workers, batch_s, strict=True)]
        steps = sum(worker.batches for worker in outcome.workers)
        waiting_s = float(np.mean([worker.waiting_s for worker in outcome.workers]))
        rows.append(
            [one.name + (", with exchanges" if exchange else ""),
             _off(steps, one.steps) if one.name == "ADSP" else "",
             *(_off(own, printed) for own, printed in zip(computed, one.compute_s, strict=True)),
             _off(waiting_s, one.blocked_s) if one.blocked_s else f"{waiting_s:.1f} s, none printed"]
        )  # fmt: skip
    return {
        "title": "ADSP: five protocols on three workers",
        "note": (
            f"{_SOURCE} Batches take the mean of what the other protocols' seconds of training and steps say, but "
            "ADSP's, whose workers take unequal steps. ADSP is replayed for as long as it ran, the others for as "
            "many steps. Steps are those of all workers, then come the seconds in which each trained, then the "
            "mean seconds in which one waited, without any exchange: the next table has them. Exchanges are also "
            "why ADSP trains too long here; its last row takes one from what Fixed ADACOMM is blocked for beyond "
            "waiting. The intervals of ADACOMM are not printed; its workers take as many steps each, "
            "whatever the intervals."
        ),
        "commands": _COMMANDS,
        "columns": [
            "protocol", "steps off, %", "worker 0 off, %", "worker 1 off, %", "worker 2 off, %", "waiting off, %",
        ],
        "rows": rows,
    }  # fmt: skip


def waiting_share(ratio: float, slack: int, exchange: float = 0.0) -> float:
    """Return the mean part of the time that one slow worker and others that are alike wait, by replay.

    Args:
        ratio: mean speed by lowest speed, from 1 up.
        slack: commits that a worker may be ahead.
        exchange: seconds of a push and a pull, as a part of those of the slowest batch.
    """
    fast = (WORKERS * ratio - 1) / (WORKERS - 1)
    outcome = replayed(
        [1.0, *[1 / fast] * (WORKERS - 1)], StaleSynchronous(slack), exchange, seconds=_SLOW_STEPS * (1.0 + exchange)
    )
    return outcome.waiting_share


def ratio_of(share: float) -> float:
    """Return the ratio of mean and lowest speed, up to 2, at which workers wait for that part of the time by replay."""
    low, high = 1.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if waiting_share(middle, SLACK) < share else (low, middle)
    return high


def _uneven(found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    alone = {ratio: waiting_share(ratio, SLACK) for ratio, _ in found}
    rows, off, off_fitted = [], [], []
    for ratio, measured in found:
        others = [(alone[one], share) for one, share in found if one not in (1.0, ratio)]
        exchange = max(0.0, float(np.mean([own / share - 1 for own, share in others])))
        fitted = waiting_share(ratio, SLACK, exchange)
        off.append(100 * (alone[ratio] - measured))
        off_fitted.append(100 * (fitted - measured))
        rows.append(
            [f"{ratio:g}", f"{100 * alone[ratio]:.1f}", f"{off[-1]:+.1f}", f"{100 * exchange:.0f}",
             f"{100 * fitted:.1f}", f"{off_fitted[-1]:+.1f}"]
        )  # fmt: skip
    even = next((share for ratio, share in found if ratio == 1.0), 0.0)
    rows.append(["mean of absolute", "", f"{np.mean(np.abs(off)):.1f}", "", "", f"{np.mean(np.abs(off_fitted)):.1f}"])
    return {
        "title": "SSP: waiting over uneven workers",
        "note": (
            f"{_SOURCE} Part of the time that a worker waits, in per cent, and points off; slack {SLACK}. The "
            f"number of workers is not printed: {WORKERS} are taken, one of them slow. The last columns take the "
            "seconds of a push and a pull, as a part of the slowest batch, from the other rows: by their code they are "
            "no waiting but part of the time, and workers are slow by a sleep before the batch, which leaves exchanges "
            "alike. Even workers, the first row, wait too in the file; no exchange explains that. Ones of a mean speed "
            f"of {ratio_of(even):.2f} times the lowest wait as long by replay, and the file has whole numbers."
        ),
        "commands": _COMMANDS,
        "columns": ["mean / lowest speed", "waiting by cdmpp", "points", "exchange, %", "waiting by cdmpp", "points"],
        "rows": rows,
    }  # fmt: skip


def _slack(found: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    seconds = np.array([(even, uneven) for slack, even, uneven in found if slack])
    order = np.array([slack for slack, _, _ in found if slack])
    trends = [float(np.corrcoef(order, one)[0, 1]) for one in seconds.T]
    return {
        "title": "SSP: waiting over the slack",
        "note": (
            f"{_SOURCE} Only seconds to the loss are printed over slacks, of even workers and of uneven ones (mean "
            "speed 3 times the lowest), and no waiting: so nothing is judged. The replay's waiting does not depend "
            f"on the slack once that is used up; from a slack of {order[0]} on, the printed seconds have a "
            f"correlation of {trends[0]:+.2f} and {trends[1]:+.2f} with it, on {len(order)} rows."
        ),
        "commands": _COMMANDS,
        "columns": ["slack", "waiting of uneven workers by cdmpp, %"],
        "rows": [[str(slack), f"{100 * waiting_share(3.0, slack):.1f}"] for slack, _, _ in found],
    }


def _off(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f}" if measured else ""

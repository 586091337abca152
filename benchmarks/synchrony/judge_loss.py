"""Predicted and measured seconds to a loss, by what a stale update is taken to count for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.synchrony.judge_policies import by_policy, predicted
from benchmarks.synchrony.predict_runs import Constants, Run, Runs
from cdmpp.synchrony.loss.time_to_loss import seconds_at
from cdmpp.synchrony.outcome import JobOutcome

TARGET_LOSS = 1.5
PENALTIES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
"""Those that a fit tries; 0: the limit of small steps, 1: a step counts one part of its delay."""
_DRAWS, _SURE = 4000, 0.9
Times = Mapping[str, float]
"""Seconds to the loss of each policy."""


def steps_to_loss(single: Sequence[Run]) -> float:
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


def times_of_seeds(runs: Runs) -> dict[str, np.ndarray]:
    """Seconds to the loss of each policy, a seed each in the same order."""
    return {
        name: np.array(
            [
                _crossing([(at_s, loss) for at_s, _, loss in run["loss"]])
                for run in sorted(own, key=lambda run: int(run["seed"]))
            ]
        )
        for name, own in by_policy(runs).items()
    }


def predicted_times(
    runs: Runs, constants: Constants, steps: float, penalty: float, has_momentum: bool = False
) -> dict[str, float]:
    """The median over replays of each policy.

    ``has_momentum``: staleness is the momentum of the same mean step (Mitliagkas et al., 2016), so that what was moved
    comes as much later as stale commits move on average.
    """
    found = {}
    for name, replayed in predicted(runs, constants, penalty).items():
        outcomes = [one.outcome for one in replayed]
        samples = outcomes[0].workers[0].samples / outcomes[0].workers[0].batches
        found[name] = float(
            np.median([seconds_at(one, steps * samples + (_late(one) if has_momentum else 0.0)) for one in outcomes])
        )
    return found


def _late(outcome: JobOutcome) -> float:
    """Weighted samples of as many mean commits as a commit is stale on average."""
    last = outcome.progress[-1]
    return last.staleness * last.weighted_samples / max(1, last.commits)


def fitted(times: Mapping[float, Times], measured: Times, names: Sequence[str]) -> float:
    """The penalty whose times are nearest to the measured ones of some policies, by the mean of absolute logarithms."""
    known = [name for name in names if np.isfinite(measured[name])]

    def error(penalty: float) -> float:
        return float(np.mean([abs(np.log(times[penalty][name] / measured[name])) for name in known]))

    return min(times, key=error)


def in_order(says: Times, was: Times) -> tuple[int, int]:
    """Pairs of policies in the right order, and all pairs of which at least one reaches the loss."""
    pairs = [(a, b) for a, b in combinations(says, 2) if was[a] != was[b]]
    return sum((says[a] < says[b]) == (was[a] < was[b]) for a, b in pairs), len(pairs)


def sure_pairs(seeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[tuple[str, str], bool]:
    """Pairs of policies whose order the measurements tell: that of 90 % of medians over seeds drawn again.

    Returns:
        Each such pair, with whether the first one is faster.
    """
    random, found = np.random.default_rng(0), {}
    medians = {
        name: np.median(seeds[name][random.integers(0, len(seeds[name]), (_DRAWS, len(seeds[name])))], axis=1)
        for name in names
    }
    for a, b in combinations(names, 2):
        share = float(np.mean(medians[a] < medians[b]) + np.mean(medians[a] == medians[b]) / 2)
        if max(share, 1 - share) >= _SURE:
            found[a, b] = share >= _SURE
    return found


def left_out_pairs(seeds: Mapping[str, np.ndarray], names: Sequence[str]) -> float:
    """Pairs of policies that one seed orders as the median of all other seeds does, the mean over seeds."""
    right = []
    for seed in range(min(len(seeds[name]) for name in names)):
        others = {name: float(np.median(np.delete(seeds[name], seed))) for name in names}
        right.append(in_order({name: float(seeds[name][seed]) for name in names}, others)[0])
    return float(np.mean(right))


def loss_tables(runs: Runs, constants: Constants) -> list[dict[str, Any]]:
    """The tables of seconds to the loss."""
    steps = steps_to_loss(by_policy(runs)["one"])
    seeds = times_of_seeds(runs)
    measured = {name: float(np.median(own)) for name, own in seeds.items()}
    reached = {name: f"{np.isfinite(own).sum()} of {len(own)}" for name, own in seeds.items()}
    times = {penalty: predicted_times(runs, constants, steps, penalty) for penalty in PENALTIES}
    names = list(times[0.0])
    left_out = {name: fitted(times, measured, [other for other in names if other != name]) for name in names}
    ways: dict[str, Times] = {
        "small steps": times[0.0],
        "penalty 1": times[1.0],
        "fitted": {name: times[left_out[name]][name] for name in names},
    }
    rows = [
        [name, _seconds(measured[name]), reached[name],
         *(text for says in ways.values() for text in (_seconds(says[name]), _off(says[name], measured[name])))]
        for name in names
    ]  # fmt: skip
    sure, orders = sure_pairs(seeds, names), []
    momentum = predicted_times(runs, constants, steps, 0.0, has_momentum=True)
    for way, says in {**ways, "momentum of stale commits": momentum}.items():
        right, pairs = in_order(says, measured)
        wrong = [abs(says[name] / measured[name] - 1) for name in names if np.isfinite(measured[name] + says[name])]
        missed = [f"{a} and {b}" for (a, b), is_first in sure.items() if (says[a] < says[b]) != is_first]
        orders.append(
            [way, f"{right} of {pairs}", f"{len(sure) - len(missed)} of {len(sure)}", "; ".join(missed) or "none",
             f"{100 * np.mean(wrong):.0f}", f"{100 * np.median(wrong):.0f}"]
        )  # fmt: skip
    picked = f"{min(left_out.values()):g} to {max(left_out.values()):g}"
    note = (
        f"Seconds to a held-out loss of {TARGET_LOSS:g}, the median over seeds. Here the replay ends and an assumption "
        "begins: that the parameters of all policies reach it once they were moved by as many batches as one worker "
        f"alone needs, {steps:.0f} on average over seeds. By small steps a batch counts with the weight of its commit. "
        "With a penalty it counts 1 / (1 + penalty x weight x staleness) of that: 1 is as Zhang et al. (2016) step, "
        f"fitted is the penalty that fits the other policies best, {picked}. "
        "ADSP and AdaComm see the mean loss of batches by the same rule, each by what its worker had pulled and "
        "trained."
    )
    columns = ["policy", "measured s", "seeds that reach it"]
    columns += [text for way in ways for text in (f"{way}, s", f"{way}, off %")]
    return [
        {"title": "Time to a loss", "note": note, "commands": [], "columns": columns, "rows": rows},
        {
            "title": "Order by time to a loss",
            "note": (
                "Pairs of policies in the order of their measured medians; the same of those pairs whose order the "
                f"measurements tell, that is, {_SURE:.0%} of medians over seeds that are drawn again have it; absolute "
                "errors of the seconds. Momentum of stale commits: small steps, in which staleness is a momentum of "
                "the same mean step (Mitliagkas et al., 2016). One measured seed has the order of the others in "
                f"{left_out_pairs(seeds, names):.1f} pairs. No rule was chosen by these rows but the fitted "
                "penalty, each policy's by the others."
            ),
            "commands": [],
            "columns": ["by", "pairs in order", "of those told apart", "wrong ones of these", "mean %", "median %"],
            "rows": orders,
        },
    ]  # fmt: skip


def _off(says: float, was: float) -> str:
    return f"{100 * (says / was - 1):+.0f}" if np.isfinite(was) and np.isfinite(says) else "–"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "not reached"

"""Rows of tables: one for each method, the mean over splits first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.expressions.methods import Outcome

COLUMNS = ("predicted by", "mean %", "median %", "worst %", "in the 80 % interval", "width for 80 %")
COMMANDS = ["EXTRAP_PYTHON=PYTHON python -m benchmarks.expressions --data FOLDER --publish"]
NAMES = {"nothing": "no model", "extrap": "Extra-P 4.2.5", "forest": "random forest", "cdmpp": "**cdmpp**"}


def summary(found: Mapping[str, Sequence[Outcome] | None]) -> list[list[str]]:
    """Summarise outcomes over groups: mean and worst of the groups' means, median of them."""
    rows = []
    for name, outcomes in found.items():
        if outcomes is None:
            rows.append([NAMES.get(name, name), "not run", *[""] * (len(COLUMNS) - 2)])
            continue
        means = np.array([one.mean for one in outcomes])
        rows.append([
            NAMES.get(name, name), f"{means.mean():.1f}", f"{np.median(means):.1f}", f"{means.max():.1f}",
            *coverage(outcomes),
        ])  # fmt: skip
    return rows


def by_row(found: Mapping[str, Sequence[Outcome] | None]) -> dict[str, list[Outcome] | None]:
    """Return outcomes of single rows, of which median and worst are to be told."""
    return {
        name: None
        if ones is None
        else [
            Outcome(
                ones[0].errors[place : place + 1],
                reach=None if (reach := ones[0].reach) is None else reach[place : place + 1],
            )
            for place in range(len(ones[0].errors))
        ]
        for name, ones in found.items()
    }


def coverage(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """Return the part of the asked runs in the 80 % interval, each group weighing the same, and the width for 80 %."""
    reaches = [one.reach for one in outcomes if one.reach is not None]
    if not reaches:
        return "", ""
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in reaches])
    every = np.concatenate(reaches)
    needed = np.quantile(every, 0.8, weights=weights, method="inverted_cdf")
    return f"{100 * np.average(every <= 1, weights=weights):.0f} %", f"{needed:.2f}"

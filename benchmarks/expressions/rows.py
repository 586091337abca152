"""Rows of tables: one for each method, the mean over splits first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.expressions.methods import Outcome

COLUMNS = ("predicted by", "mean %", "median %", "worst %", "in the 80 % interval")
COMMANDS = ["EXTRAP_PYTHON=PYTHON python -m benchmarks.expressions --data FOLDER --publish"]
NAMES = {"nothing": "no model", "extrap": "Extra-P 4.2.5", "forest": "random forest", "cdmpp": "**cdmpp**"}


def summary(found: Mapping[str, Sequence[Outcome] | None]) -> list[list[str]]:
    """Summarise outcomes over groups: mean and worst of the groups' means, median of them."""
    rows = []
    for name, outcomes in found.items():
        if outcomes is None:
            rows.append([NAMES.get(name, name), "not run", "", "", ""])
            continue
        means = np.array([one.mean for one in outcomes])
        covered = np.mean([one.covered for one in outcomes])
        rows.append([
            NAMES.get(name, name), f"{means.mean():.1f}", f"{np.median(means):.1f}", f"{means.max():.1f}",
            "" if np.isnan(covered) else f"{100 * covered:.0f} %",
        ])  # fmt: skip
    return rows


def by_row(found: Mapping[str, Sequence[Outcome] | None]) -> dict[str, list[Outcome] | None]:
    """Return outcomes of single rows, of which median and worst are to be told."""
    return {
        name: None
        if ones is None
        else [Outcome(np.array([error]), covered=ones[0].covered) for error in ones[0].errors]
        for name, ones in found.items()
    }

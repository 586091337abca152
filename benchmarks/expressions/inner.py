"""Inner splits: the largest values of a column of the fitted runs are asked for, and the others are fitted again.

Rules of intervals were compared on these, which see no run that the other sections ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions import frameworks, layouts, placements, sweep, throughput
from benchmarks.expressions.methods import by_cdmpp
from benchmarks.expressions.rows import COLUMNS, COMMANDS, coverage
from benchmarks.expressions.split import Split
from cdmpp.expression import RunTable
from cdmpp.expression.design import Design
from cdmpp.expression.folds import extrapolating_folds

_LEAST = 2
"""Runs that are asked for."""


def inner(split: Split) -> Iterator[Split]:
    """Yield a split of the fitted runs for each column whose largest values can be held out.

    Columns that no longer vary are no factors, and groups that are no longer fitted are not asked for.
    """
    table = RunTable.of(
        {**split.part(split.known), "time_s": split.times_s[split.known]}, "time_s", split.factors, split.groups
    )
    design = Design.of(table)
    labels = np.full(len(split.times_s), "", dtype=object)
    labels[split.known] = table.labels
    for fold in extrapolating_folds(design):
        values = np.asarray(split.columns[fold.factor])
        bound = design.table.factors[fold.factor][fold.trained].max()
        known, asked = split.known & (values <= bound), split.known & (values > bound)
        asked &= np.isin(labels, labels[known])
        varying = []
        for name in split.factors:
            own = np.asarray(split.columns[name])
            if len(np.unique(own[known])) > 1:
                varying.append(name)
            else:
                asked &= own == own[known][0]
        if asked.sum() >= _LEAST:
            yield replace(split, known=known, asked=asked, factors=tuple(varying))


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge inner splits of the tables of the other sections."""
    pairs = [placements.cut(one, one["gpus"] <= 4, one["gpus"] >= 8) for one in placements.pairs(data)]
    outer = {
        "Sia and Pollux, at most 4 GPUs": pairs, "vTrain, three splits": layouts.splits(data),
        "MPT, at most 16 GPUs": [throughput.sharded(data)],
        "parameter servers, 1 to 4 GPUs": [throughput.servers(data)],
        "nanotron, at most 8 nodes": [sweep.split(data)], "PyTorch and JAX, four splits": frameworks.splits(),
    }  # fmt: skip
    rows = []
    for name, splits in outer.items():
        found = [by_cdmpp(one, placements.SETTINGS) for split in splits for one in inner(split)]
        means = [one.mean for one in found]
        rows.append([name, str(len(found)), f"{np.mean(means):.1f}", f"{np.median(means):.1f}", *coverage(found)])
    note = (
        "Of the runs that are fitted above, the largest values of a column are asked for, and the others are fitted "
        "again, a twentieth of the usual time for the search. How intervals widen was chosen by these: no run that the "
        "other tables ask for is seen. Means over the splits."
    )
    return [{
        "title": "Inner splits", "note": note, "commands": COMMANDS, "rows": rows,
        "columns": ["fitted runs of", "splits", "mean %", "median %", *COLUMNS[-2:]],
    }]  # fmt: skip

"""Iterations of GPTs under tensor, data and pipeline parallelism on one node: structured splits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import by_cdmpp, by_extrap, by_forest
from benchmarks.expressions.rows import COLUMNS, COMMANDS, NAMES, coverage
from benchmarks.expressions.split import Split

FACTORS = ("gpus", "global_batch", "micro_batch", "hidden", "layers", "seq_length", "tp", "dp", "pp")
_NOTE = (
    "Ground truth of vTrain (github.com/VIA-Research/vTrain at f8dda84, MIT): measured iterations of GPTs on one node "
    "of A100, {rows} rows; one measurement a row. cdmpp is given the table alone. What layers compute and exchange, "
    "and how a pipeline fills, are known terms of recognised columns; none was made for this table, but errors on all "
    "three splits were seen while the terms were made. In the second split the hidden size never varies in what is "
    "fitted: how the time depends on it follows from the known terms alone. Nine physical terms made by hand reach "
    "11.5, 12.1 and 7.9."
)


def splits(data: Path) -> list[Split]:
    """Read the table; its splits in the order of the page."""
    with (data / "vtrain" / "single_node.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    times_s = columns["iteration_ms"] * 1e-3
    cuts = {
        "2 and 4 GPUs to 8": columns["gpus"] < 8,
        "hidden size 1024 to 2048": columns["hidden"] < 2048,
        "no pipeline to pipelines": columns["pp"] == 1,
    }
    return [Split(name, FACTORS, columns, times_s, known, ~known) for name, known in cuts.items()]


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the folder ``vtrain`` of ``data``."""
    own = splits(data)
    extrap = by_extrap(own, ("global_batch", "micro_batch", "layers", "tp", "dp", "pp"))
    ours, forest = [by_cdmpp(one) for one in own], [by_forest(one) for one in own]
    rows = [
        [NAMES["extrap"], *("not run" if extrap is None else f"{one.mean:.1f}" for one in extrap or own), "", ""],
        [NAMES["forest"], *(f"{one.mean:.1f}" for one in forest), "", ""],
        [
            NAMES["cdmpp"],
            *(f"{one.mean:.1f}" for one in ours),
            *(", ".join(column) for column in zip(*(coverage([one]) for one in ours), strict=True)),
        ],
    ]
    return [{
        "title": "Parallel layouts of GPTs", "note": _NOTE.format(rows=len(own[0].times_s)), "commands": COMMANDS,
        "columns": ["predicted by, mean error in %", *(one.name for one in own), *COLUMNS[-2:]], "rows": rows,
    }]  # fmt: skip

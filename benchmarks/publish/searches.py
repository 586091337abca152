"""Searches side by side for ``docs/results/searches.md``: tables and pictures.

``python -m benchmarks.publish.searches out=outputs/search`` adds the cells of ``benchmarks.search`` to
``docs/searches.csv`` and those of ``benchmarks.search_network`` to ``docs/searched-networks.csv``; one that is there is
replaced. It writes tables between ``<!-- searches -->`` and ``<!-- /searches -->``, ``<!-- networks -->`` and
``<!-- /networks -->``, and two pictures a device.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import replace_part, table
from benchmarks.search_tasks import COMPARED
from cdmpp.data.plots import save_plot
from cdmpp.platform.files import read_json, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE, TRIALS = "xgb", 128
COLOURS = {"two-stage": "#1f6fb4", "online": "#4fa36b", "frozen": "#8d6bb0", "xgb": "#e07b1a", "random": "#777777"}


@dataclass(frozen=True)
class Point:
    """The best latency that a search had found after some trials."""

    device: str
    task: str
    seed: int
    model: str
    trials: int
    wall_s: float
    """Since the search began, its measuring included."""
    best_s: float


Key = tuple[str, str, int, str]
Curves = Mapping[Key, Sequence[Point]]


def points_of(cell: Mapping[str, Any]) -> list[Point]:
    """Return the points of one cell: one after each measured batch."""
    found, best = [], math.inf
    for number, (seconds, wall_s) in enumerate(cell["trials"], start=1):
        best = min(best, math.inf if seconds is None else seconds)
        last = number == len(cell["trials"]) or cell["trials"][number][1] != wall_s
        if last and math.isfinite(best):
            found.append(Point(cell["device"], cell["name"], cell["seed"], cell["model"], number, wall_s, best))
    return found


def trials_to(points: Sequence[Point], goal_s: float) -> int | None:
    """Trials after which ``goal_s`` was reached; None: never."""
    return next((point.trials for point in points if point.best_s <= goal_s), None)


def page(curves: Curves) -> str:
    """All tables as Markdown."""
    parts: list[str] = []
    for device in sorted({key[0] for key in curves}):
        of_device = {key: points for key, points in curves.items() if key[0] == device}
        seeds = sorted({key[2] for key in of_device})
        parts += [
            f"### `{device}`",
            "",
            f"{_count(seeds, 'seed')}, {TRIALS} trials.",
            "",
        ]
        parts += [*_summary(of_device), ""]
        by_model: dict[str, set[tuple[str, int]]] = {}
        for _, task, seed, model in of_device:
            by_model.setdefault(model, set()).add((task, seed))
        shared = set.intersection(*by_model.values())
        if shared and any(searches != shared for searches in by_model.values()):
            common = {key: points for key, points in of_device.items() if key[1:3] in shared}
            parts += [f"The same of the {len(shared)} searches that all models ran:", "", *_summary(common), ""]
        parts += [*_tasks(of_device), ""]
    return "\n".join(parts).rstrip("\n")


def _summary(curves: Curves) -> list[str]:
    lines = []
    for model in [name for name in ("offline", *COLOURS) if any(key[3] == name for key in curves)]:
        ratios, needed, walls = [], [], []
        for key, points in curves.items():
            reference = curves.get((*key[:3], REFERENCE))
            if key[3] != model or not reference:
                continue
            goal_s = reference[-1].best_s
            ratios.append(points[-1].best_s / goal_s)
            needed.append(trials_to(points, goal_s))
            walls.append(points[-1].wall_s / reference[-1].wall_s)
        if not ratios:
            continue
        reached = [one for one in needed if one is not None]
        # A search that never gets there counts with twice its trials.
        mean = _mean([2 * TRIALS if one is None else one for one in needed])
        lines.append(
            [
                model,
                str(len(ratios)),
                "1" if model == "offline" else str(TRIALS),
                f"{_mean(ratios):.3f}",
                f"{min(ratios):.2f} - {max(ratios):.2f}",
                "-" if model == "offline" else f"{mean:.0f}",
                f"{len(reached)} of {len(needed)}",
                f"{_mean(walls):.2f}",
            ]
        )
    heads = ["model", "searches", "trials", "final best over XGBModel's", "range"]
    heads += ["trials to XGBModel's best", "reached", "wall time over XGBModel's"]
    return table(heads, lines)


def _tasks(curves: Curves) -> list[str]:
    models = [name for name in ("offline", *COLOURS) if any(key[3] == name for key in curves)]
    lines = []
    for task in [name for name in COMPARED if any(key[1] == name for key in curves)]:
        best = {
            model: _mean([points[-1].best_s for key, points in curves.items() if key[1] == task and key[3] == model])
            for model in models
        }
        least = min(value for value in best.values() if value == value)
        shown = ["-" if math.isnan(best[model]) else f"{1e6 * best[model]:.4g}" for model in models]
        lines.append(
            [task, *(f"**{text}**" if best[m] == least else text for m, text in zip(models, shown, strict=True))]
        )
    heads = ["task", *(f"{model}, us" for model in models)]
    return ["Best latency at the end (geometric mean over seeds):", "", *table(heads, lines)]


def draw(axes: Axes, curves: Curves, wall: bool) -> None:
    """Geometric mean over searches of the best latency over XGBModel's final one, by trials or wall time.

    Of models that ran all of XGBModel's searches.
    """
    finals = {key[:3]: points[-1].best_s for key, points in curves.items() if key[3] == REFERENCE}
    for model, colour in COLOURS.items():
        own = [points for key, points in curves.items() if key[3] == model and key[:3] in finals]
        if len(own) < len(finals):  # a mean over other searches is no rival
            continue
        ends = [points[-1].wall_s if wall else points[-1].trials for points in own]
        grid = np.geomspace(10, max(ends), 60) if wall else np.arange(16, TRIALS + 1, 16)
        means = []
        for at in grid:
            reached = [
                next((p.best_s for p in reversed(points) if (p.wall_s if wall else p.trials) <= at), math.nan)
                / finals[(points[0].device, points[0].task, points[0].seed)]
                for points in own
            ]
            means.append(_mean(reached) if all(math.isfinite(one) for one in reached) else math.nan)
        axes.plot(grid, means, color=colour, label=model, marker=None if wall else "o", markersize=3)
    offline = [points[-1].best_s / finals[key[:3]] for key, points in curves.items() if key[3] == "offline"]
    if offline:
        label = "offline: one program, chosen by prediction"
        axes.axhline(_mean(offline), color="black", linewidth=0.8, linestyle=":", label=label)
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.set(xlabel="wall time (s)" if wall else "measured trials", ylabel="best latency over XGBModel's final best")
    if wall:
        axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)


def main(out: str, docs: str) -> None:
    """Add the cells below ``out`` to the rows, then write tables and pictures of all rows."""
    path = Path(docs) / "searches.csv"
    curves = read_points(path)
    for file in sorted((Path(out) / "cells").glob("*.json")):
        points = points_of(read_json(file))
        if points and points[0].task in COMPARED:
            curves[_key(points[0])] = points
    write_points(path, curves)
    replace_part(Path(docs) / "results" / "searches.md", "searches", page(curves))
    networks = {**read_networks(Path(docs) / "searched-networks.csv"), **new_networks(Path(out))}
    write_networks(Path(docs) / "searched-networks.csv", networks)
    replace_part(Path(docs) / "results" / "searches.md", "networks", network_page(networks))
    for device in sorted({key[0] for key in curves}):
        own = {key: points for key, points in curves.items() if key[0] == device}
        for name, wall in (("trials", False), ("wall", True)):
            title = f"{device}: {len({key[1:3] for key in own})} searches a model"
            save_plot(
                Path(docs) / "images" / f"search-{device}-{name}.png",
                (7.0, 4.2),
                title,
                partial(draw, curves=own, wall=wall),
            )


NETWORK_FIELDS = ("device", "network", "model", "seed", "minutes", "turn", "trials", "measured_s", "kernels_s")


def new_networks(out: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Rows of ``benchmarks.search_network`` by their first four fields."""
    rows = [read_json(path) for path in sorted((out / "networks").glob("*.json"))]
    shown = [
        {name: f"{row[name]:.5g}" if name.endswith("_s") else str(row[name]) for name in NETWORK_FIELDS} for row in rows
    ]
    return {tuple(row[name] for name in NETWORK_FIELDS[:4]): row for row in shown}


def read_networks(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The same of a CSV file; none where there is no file."""
    if not path.is_file():
        return {}
    with path.open(newline="") as stream:
        return {tuple(row[name] for name in NETWORK_FIELDS[:4]): row for row in csv.DictReader(stream)}


def write_networks(path: Path, rows: Mapping[tuple[str, ...], Mapping[str, str]]) -> None:
    """Replace the CSV file."""

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, NETWORK_FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[key] for key in sorted(rows))

    write_atomic(path, write)


def network_page(rows: Mapping[tuple[str, ...], Mapping[str, str]]) -> str:
    """A line a network and model."""
    lines = [
        [
            f"`{row['device']}`",
            row["network"],
            row["model"],
            row["seed"],
            row["minutes"],
            row["turn"],
            row["trials"],
            f"{1e3 * float(row['measured_s']):.2f}",
            f"{1e3 * float(row['kernels_s']):.2f}",
        ]
        for _, row in sorted(rows.items(), key=lambda one: (one[0][:2], float(one[1]["measured_s"])))
    ]
    heads = ["device", "network", "model", "seed", "minutes", "a turn", "trials"]
    heads += ["network, ms", "its kernels alone, ms"]
    return "\n".join(table(heads, lines, left=3)) if lines else "Not run yet."


def read_points(path: Path) -> dict[Key, list[Point]]:
    """Rows of the CSV file by search; none where there is no file."""
    curves: dict[Key, list[Point]] = {}
    if path.is_file():
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                kinds = {"seed": int, "trials": int, "wall_s": float, "best_s": float}
                point = Point(**{key: kinds.get(key, str)(value) for key, value in row.items()})
                curves.setdefault(_key(point), []).append(point)
    return curves


def write_points(path: Path, curves: Curves) -> None:
    """Replace the CSV file."""

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([one.name for one in fields(Point)])
            for key in sorted(curves):
                writer.writerows(_shown(point) for point in curves[key])

    write_atomic(path, write)


def _shown(point: Point) -> list[object]:
    *names, wall_s, best_s = astuple(point)
    return [*names, f"{wall_s:.2f}", f"{best_s:.5g}"]


def _key(point: Point) -> Key:
    return point.device, point.task, point.seed, point.model


def _mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _count(items: Sequence[int], what: str) -> str:
    return (
        f"{what.capitalize()} {items[0]}" if len(items) == 1 else f"{len(items)} {what}s ({', '.join(map(str, items))})"
    )


if __name__ == "__main__":
    run(main, out="outputs/search", docs="docs")

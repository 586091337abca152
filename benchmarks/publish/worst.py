"""Where the error of a cell sits: ``python -m benchmarks.publish.worst device=xeon-icelake cell=held_out/0/cdmpp``.

Prints, as Markdown, how much of the mean error a few programs carry, how it depends on how far a program is from the
fastest of its task, and the worst programs by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import table
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_device
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell

SLOWNESS = (1.0, 1.2, 2.0, 5.0, 20.0, np.inf)
"""Latency over that of the task's fastest program: edges of the groups."""
_WORST = ["program", "operator", "class", "measured us", "predicted us", "over fastest", "label spread %"]


@dataclass(frozen=True)
class Errors:
    """Test programs of one cell."""

    rows: np.ndarray
    """(m,) rows of the data set."""
    true_s: np.ndarray
    predicted_s: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """(m,) predicted over measured latency, minus one."""
        return self.predicted_s / self.true_s - 1


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """``record_ids``, ``true_s`` and ``predicted_s`` (m,) of the cell whose JSON is ``path``."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            return {name: stored[name] for name in ("record_ids", "true_s", "predicted_s")}
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"no readable predictions beside {path} ({error}); run that cell again") from error


def errors_of(dataset: LatencyDataset, out: Path, dataset_name: str, cell: Cell) -> Errors:
    """Raises ``DataError`` where the cell was not run, or on other programs."""
    stored = read_predictions(cell.path(out, dataset_name))
    index = {str(identity): row for row, identity in enumerate(dataset.record_ids)}
    missing = [identity for identity in stored["record_ids"] if str(identity) not in index]
    if missing:
        raise DataError(f"{cell} has programs that the data lacks, first {missing[0]}: run the cell again")
    rows = np.array([index[str(identity)] for identity in stored["record_ids"]])
    return Errors(rows, stored["true_s"], stored["predicted_s"])


def section(dataset: LatencyDataset, errors: Errors, title: str, n_worst: int = 50) -> str:
    """Markdown."""
    relative, size = errors.relative, np.abs(errors.relative)
    order = np.argsort(-size)
    shares = [100 * size[order[: max(1, round(part * len(size)))]].sum() / size.sum() for part in (0.01, 0.05, 0.10)]
    too_long, too_short = (100 * np.maximum(sign * relative, 0).mean() for sign in (1, -1))
    slowness = _slowness(dataset, errors)
    groups = []
    for low, high in zip(SLOWNESS, SLOWNESS[1:], strict=False):
        inside = (slowness >= low) & (slowness < high)
        if inside.any():
            label = f"{low:g} to {high:g}" if np.isfinite(high) else f"over {low:g}"
            figures = [100 * size[inside].mean(), 100 * np.median(size[inside]), 100 * relative[inside].mean()]
            groups.append([label, f"{inside.sum():,}", *(f"{figure:.1f}" for figure in figures)])
    tasks = [dataset.tasks[str(task)] for task in dataset.task_ids[errors.rows]]
    op_classes = np.array([task.op_class for task in tasks])
    points = {name: 100 * size[op_classes == name].sum() / len(size) for name in np.unique(op_classes)}
    by_class = []
    for name in sorted(points, key=points.__getitem__, reverse=True):
        own = size[op_classes == name]
        by_class.append([name, f"{len(own):,}", f"{100 * own.mean():.1f}", f"{points[name]:.1f}"])
    worst = []
    for i in order[:n_worst]:
        row, task = errors.rows[i], tasks[i]
        numbers = [1e6 * errors.true_s[i], 1e6 * errors.predicted_s[i], slowness[i], 100 * dataset.spread[row]]
        name = f"`{dataset.record_ids[row]}`"
        worst.append([name, task.op_name[:60], task.op_class, *(f"{number:,.4g}" for number in numbers)])
    lines = [
        f"# {title}",
        "",
        f"MAPE {100 * size.mean():.1f} %: {too_long:.1f} from predictions that are too long, "
        f"{too_short:.1f} from those too short. The worst 1 % of the {len(size):,} programs "
        f"carry {shares[0]:.0f} % of it, the worst 5 % {shares[1]:.0f} %, the worst 10 % {shares[2]:.0f} %.",
        "",
        *table(["latency over the task's fastest", "programs", "MAPE %", "median %", "mean signed error %"], groups),
        "",
        *table(["op class", "programs", "MAPE %", "points of the MAPE"], by_class),
        "",
        f"The worst {len(worst)}:",
        "",
        *table(_WORST, worst, left=3),
    ]
    return "\n".join(lines)


def _slowness(dataset: LatencyDataset, errors: Errors) -> np.ndarray:
    """(m,) latency over the fastest measured program of the same task in the whole data set."""
    fastest: dict[str, float] = {}
    for task, latency in zip(dataset.task_ids.tolist(), dataset.latency_s.tolist(), strict=True):
        fastest[task] = min(latency, fastest.get(task, np.inf))
    return errors.true_s / np.array([fastest[str(task)] for task in dataset.task_ids[errors.rows]])


def main(device: str, cell: str, out: str) -> None:
    """Print the section of ``device/cell`` of the evaluation in ``out``."""
    dataset, chosen = load_device(device), Cell.parse(cell)
    errors = errors_of(dataset, Path(out), device, chosen)
    print(section(dataset, errors, f"{device}: {chosen.model} on {chosen.split}, seed {chosen.seed}"))


if __name__ == "__main__":
    run(main, device="???", cell="held_out/0/cdmpp", out="outputs/evaluation")

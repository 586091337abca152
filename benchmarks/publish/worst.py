"""Where the error of a cell sits: ``python -m benchmarks.publish.worst device=xeon-icelake cell=held_out/0/cdmpp``.

Writes a section of ``docs/WORST.md``: how much of the mean error a few programs carry, how it depends on how far a
program is from the fastest of its task, and the worst programs by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.files import write_atomic
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.cell import Cell, read_predictions

SLOWNESS = (1.0, 1.2, 2.0, 5.0, 20.0, np.inf)
"""Latency over that of the task's fastest program: edges of the groups."""


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
    lines = [f"## {title}", ""]
    lines += [
        f"MAPE {100 * size.mean():.1f} %: {too_long:.1f} from predictions that are too long, "
        f"{too_short:.1f} from those too short. The worst 1 % of the {len(size):,} programs "
        f"carry {shares[0]:.0f} % of it, the worst 5 % {shares[1]:.0f} %, the worst 10 % {shares[2]:.0f} %.",
        "",
        "| latency over the task's fastest | programs | MAPE % | median % | mean signed error % |",
        "|---|---:|---:|---:|---:|",
    ]
    slowness = _slowness(dataset, errors)
    for low, high in zip(SLOWNESS, SLOWNESS[1:], strict=False):
        inside = (slowness >= low) & (slowness < high)
        if inside.any():
            label = f"{low:g} to {high:g}" if np.isfinite(high) else f"over {low:g}"
            figures = [100 * size[inside].mean(), 100 * np.median(size[inside]), 100 * relative[inside].mean()]
            lines.append(f"| {label} | {inside.sum():,} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    lines += ["", "| op class | programs | MAPE % | points of the MAPE |", "|---|---:|---:|---:|"]
    classes = np.array([dataset.tasks[str(task)].op_class for task in dataset.task_ids[errors.rows]])
    points = {name: 100 * size[classes == name].sum() / len(size) for name in np.unique(classes)}
    for name in sorted(points, key=points.__getitem__, reverse=True):
        inside = classes == name
        lines.append(f"| {name} | {inside.sum():,} | {100 * size[inside].mean():.1f} | {points[name]:.1f} |")
    lines += ["", f"The worst {min(n_worst, len(size))}:", ""]
    lines += ["| program | operator | class | measured us | predicted us | over fastest | label spread % |"]
    lines += ["|---|---|---|---:|---:|---:|---:|"]
    for i in order[:n_worst]:
        row = errors.rows[i]
        task = dataset.tasks[str(dataset.task_ids[row])]
        numbers = [1e6 * errors.true_s[i], 1e6 * errors.predicted_s[i], slowness[i], 100 * dataset.spread[row]]
        name = f"`{dataset.record_ids[row]}` | {task.op_name[:60]} | {task.op_class}"
        lines.append(f"| {name} | {' | '.join(f'{number:,.4g}' for number in numbers)} |")
    return "\n".join([*lines, ""])


def _slowness(dataset: LatencyDataset, errors: Errors) -> np.ndarray:
    """(m,) latency over the fastest measured program of the same task in the whole data set."""
    fastest: dict[str, float] = {}
    for task, latency in zip(dataset.task_ids.tolist(), dataset.latency_s.tolist(), strict=True):
        fastest[task] = min(latency, fastest.get(task, np.inf))
    return errors.true_s / np.array([fastest[str(task)] for task in dataset.task_ids[errors.rows]])


def update(path: Path, name: str, text: str) -> None:
    """Put the section ``name`` into the document, in place of an older one."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    sections = dict(re.findall(r"<!-- begin (\S+) -->\n(.*?)<!-- end \1 -->", old, flags=re.DOTALL)) | {name: text}
    body = "\n".join(f"<!-- begin {key} -->\n{sections[key]}<!-- end {key} -->\n" for key in sorted(sections))
    head = "# Worst predictions\n\nWritten by `python -m benchmarks.publish.worst`; do not edit by hand.\n\n"

    def write(temporary: Path) -> None:
        temporary.write_text(head + body, encoding="utf-8")

    write_atomic(path, write)


def main(arguments: list[str]) -> None:
    """``device=`` and ``cell=`` as above, ``out=`` the evaluation's folder, ``docs=`` where the document goes."""
    from cdmpp.data.sources import load_device

    given: Mapping[str, str] = dict(word.split("=", 1) for word in arguments if "=" in word)
    unknown = set(given) - {"device", "cell", "out", "docs"}
    if unknown or "device" not in given or len(given) != len(arguments):
        usage = "python -m benchmarks.publish.worst device=NAME [cell=...] [out=...] [docs=...]"
        raise CdmppError(f"usage: {usage}; given: {' '.join(arguments)}")
    device, cell = given["device"], Cell.parse(given.get("cell", "held_out/0/cdmpp"))
    dataset = load_device(device)
    errors = errors_of(dataset, Path(given.get("out", "outputs/evaluation")), device, cell)
    title = f"{device}: {cell.model} on {cell.split}, seed {cell.seed}"
    update(Path(given.get("docs", "docs")) / "WORST.md", device, section(dataset, errors, title))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CdmppError as error:
        sys.exit(f"error: {error}")

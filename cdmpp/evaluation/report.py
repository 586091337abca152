"""Finished cells as tables: ``docs/RESULTS.md``, ``docs/results.json`` and the table on the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.publish.goals import goal_section
from cdmpp.data.files import read_json, write_atomic
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.evaluation.rows import ResultRow, result_rows, update_results


@dataclass(frozen=True)
class Column:
    metric: str
    title: str
    digits: int
    better: int
    """-1: smaller is better, 1: larger, 0: nearest to zero."""


COLUMNS = (
    Column("mape", "MAPE %", 1, -1),
    Column("median_ape", "median %", 1, -1),
    Column("p90_ape", "p90 %", 1, -1),
    Column("within_10", "within 10 %", 0, 1),
    Column("within_20", "within 20 %", 0, 1),
    Column("spearman_within_task", "Spearman", 3, 1),
    Column("top1_regret", "top-1", 3, -1),
    Column("top8_regret", "top-8", 3, -1),
    Column("weighted_top1_regret", "weighted top-1", 3, -1),
    Column("task_mape", "task MAPE %", 1, -1),
    Column("bias_at_best", "bias at best %", 1, 0),
)
TERMINAL = ("mape", "median_ape", "p90_ape", "within_20", "spearman_within_task", "top1_regret", "bias_at_best")
"""Columns that fit a terminal of 80 characters."""
_GOALS = "targets"
EXPLANATION = """\
MAPE, median and p90 are absolute percentage errors of the latency of held-out programs; "within" is the share of
programs with at most that error. Spearman is the mean rank correlation inside tasks of at least five programs. Top-k
is the latency of the best of the k programs predicted fastest over that of the task's measured fastest (geometric mean
over tasks; weighted: ratio of sums over tasks, weighted by call sites). Task MAPE is the mean of the tasks' MAPEs. Bias
at best is the mean signed error at each task's measured-fastest program. What trained models and trees answer is scaled
by one factor that gives the least MAPE on the validation part. Figures are mean ± standard deviation over seeds.
Prediction intervals are calibrated on the validation part by split conformal prediction over tasks: "holds" is the
share of test programs whose measured latency lies inside, "by task" the mean of the tasks' shares, "width" the median
ratio of upper to lower bound; those of trees have one width for all programs.
"""


def test_table(
    metrics_by_model: Mapping[str, Mapping[str, float]], n_programs: int, n_tasks: int, title: str = "Held-out test"
) -> Table:
    """Rich table: a row a model, a column each metric of ``TERMINAL``, the best of each column in bold."""
    columns = [column for column in COLUMNS if column.metric in TERMINAL]
    table = Table(title=f"{title} ({n_programs:,} programs of {n_tasks:,} tasks)", title_justify="left")
    add_name_column(table, "model", metrics_by_model)
    for column in columns:
        table.add_column(column.title, justify="right", overflow="fold")
    best = {
        column.metric: _best([m.get(column.metric) for m in metrics_by_model.values()], column) for column in columns
    }
    for model, metrics in metrics_by_model.items():
        cells = []
        for column in columns:
            value = metrics.get(column.metric)
            text = _number(value, column.digits)
            cells.append(f"[bold]{text}[/bold]" if value is not None and value == best[column.metric] else text)
        table.add_row(model, *cells)
    return table


def add_name_column(table: Table, heading: str, names: Iterable[str]) -> None:
    """A column whose entries are told apart on the narrowest terminal: never cut, folded where longer than 24."""
    table.add_column(heading, overflow="fold", no_wrap=all(len(name) <= 24 for name in names))


test_table.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def write_report(
    cells: Sequence[Mapping[str, Any]],
    docs: Path,
    noise: Mapping[str, NoiseFloor] | None = None,
    images: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Bring ``docs/results.json`` and ``docs/RESULTS.md`` up to date with ``cells``.

    Args:
        cells: contents of cell files; what other runs wrote about other data sets stays.
        noise: noise floor of the labels by data set name.
        images: file names beside RESULTS.md by data set name.
    """
    for name in sorted({cell["dataset"] for cell in cells}):
        own = [cell for cell in cells if cell["dataset"] == name]
        section = _dataset_section(name, own, (noise or {}).get(name), (images or {}).get(name, ()))
        put_section(docs, name, section, result_rows(own))


def put_section(docs: Path, name: str, section: str, rows: Sequence[ResultRow]) -> None:
    """Put ``rows`` into ``docs/results.json`` and the Markdown ``section`` into ``docs/RESULTS.md``, in place of older
    ones of that name; the table of targets follows."""
    update_results(docs / "results.json", rows)
    path = docs / "RESULTS.md"
    sections = _sections(path.read_text()) if path.is_file() else {}
    sections |= {name: section, _GOALS: goal_section(read_json(docs / "results.json"))}
    names = [_GOALS, *sorted(sections.keys() - {_GOALS})]
    body = "\n".join(f"<!-- begin {n} -->\n{sections[n]}<!-- end {n} -->\n" for n in names)
    text = f"# Results\n\nWritten by scripts; do not edit by hand.\n\n{EXPLANATION}\n{body}"
    write_atomic(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sections(text: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- begin (\S+) -->\n(.*?)<!-- end \1 -->", text, flags=re.DOTALL))


def _dataset_section(
    name: str, cells: Sequence[Mapping[str, Any]], noise: NoiseFloor | None, images: Sequence[str]
) -> str:
    lines = [f"## {name}", ""]
    if noise is not None and noise.n_programs:
        lines += [
            f"Noise floor of the labels: {noise.mean:.2f} % mean, {noise.median:.2f} % median, {noise.p90:.2f} % p90 "
            f"deviation between measurements of the same program ({noise.n_programs:,} programs measured again).",
            "",
        ]
    for split in dict.fromkeys(cell["split"] for cell in cells):
        own = [cell for cell in cells if cell["split"] == split]
        lines += [f"### {name}: {split}", "", _split_facts(own), "", *_metric_table(own), ""]
        if with_intervals := [cell for cell in own if cell.get("intervals")]:
            lines += ["Prediction intervals:", "", *_interval_table(with_intervals), ""]
        lines += ["MAPE % by op class:", "", *_breakdown_table(own, "by_op_class"), ""]
        lines += ["MAPE % by measured latency:", "", *_breakdown_table(own, "by_latency"), ""]
        if all(len(cell.get("by_device", ())) > 1 for cell in own):
            lines += ["MAPE % by device:", "", *_breakdown_table(own, "by_device"), ""]
    for image in images:
        lines += [f"![{Path(image).stem}]({image})", ""]
    commands = dict.fromkeys(f"`{cell['command']}` ({cell['date']})" for cell in cells if cell["command"])
    lines += ["Commands:", "", *(f"- {command}" for command in commands), ""]
    return "\n".join(lines)


def _split_facts(cells: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on what was held out; ranges where the seeds differ."""
    counts = [cell["split_counts"] for cell in cells]

    def span(key: str) -> str:
        low, high = min(c[key] for c in counts), max(c[key] for c in counts)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    parts = [
        f"{p} {span(f'{p}_programs')} programs of {span(f'{p}_tasks')} tasks" for p in ("train", "validation", "test")
    ]
    text = "; ".join(parts)
    if "test_networks" in counts[0]:
        networks = sorted({network for c in counts for network in c["test_networks"]})
        text += f"; held-out networks: {', '.join(networks)}"
        text += f"; shared tasks ({counts[0]['shared_rule']}): {span('shared_tasks')}"
    return f"{len({cell['seed'] for cell in cells})} seeds; {text}."


def _metric_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    by_model = _group(cells)
    means = {m: {c.metric: _mean(cs, c.metric) for c in COLUMNS} for m, cs in by_model.items()}
    best = {c.metric: _best([row[c.metric] for row in means.values()], c) for c in COLUMNS}
    lines = [f"| model | seeds | {' | '.join(c.title for c in COLUMNS)} |", f"|---|---:|{'---:|' * len(COLUMNS)}"]
    for model, own in by_model.items():
        texts = []
        for column in COLUMNS:
            text = _with_spread([cell["metrics"].get(column.metric) for cell in own], column.digits)
            texts.append(f"**{text}**" if text != "–" and means[model][column.metric] == best[column.metric] else text)
        lines.append(f"| {model} | {len(own)} | {' | '.join(texts)} |")
    return lines


def _interval_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    levels = sorted({level for cell in cells for level in cell["intervals"]})
    columns = [
        (level, key, f"{100 * float(level):g} % {title}", digits)
        for level in levels
        for key, title, digits in (("coverage", "holds %", 1), ("task_coverage", "by task %", 1), ("width", "width", 2))
    ]
    titles = " | ".join(title for *_, title, _ in columns)
    lines = [f"| model | seeds | {titles} |", f"|---|---:|{'---:|' * len(columns)}"]
    for model, own in _group(cells).items():
        texts = [
            _with_spread([cell["intervals"].get(level, {}).get(key) for cell in own], digits)
            for level, key, _, digits in columns
        ]
        lines.append(f"| {model} | {len(own)} | {' | '.join(texts)} |")
    return lines


def _breakdown_table(cells: Sequence[Mapping[str, Any]], part: str) -> list[str]:
    labels = sorted({label for cell in cells for label in cell[part]})
    sizes = {
        label: round(np.mean([cell[part][label]["n_programs"] for cell in cells if label in cell[part]]))
        for label in labels
    }
    titles = [f"{label.split(': ')[-1]} (n={sizes[label]:,})" for label in labels]
    lines = [f"| model | {' | '.join(titles)} |", f"|---|{'---:|' * len(labels)}"]
    for model, own in _group(cells).items():
        texts = [_with_spread([cell[part].get(label, {}).get("mape") for cell in own], 1) for label in labels]
        lines.append(f"| {model} | {' | '.join(texts)} |")
    return lines


def _group(cells: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Cells by model, worst mean MAPE first, so that a table ends with what is best."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(cell["model"], []).append(cell)
    return dict(sorted(groups.items(), key=lambda item: -(_mean(item[1], "mape") or 0.0)))


def _mean(cells: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    values = [cell["metrics"][metric] for cell in cells if metric in cell["metrics"]]
    return float(np.mean(values)) if values else None


def _best(values: Iterable[float | None], column: Column) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    if not known:
        return None
    return min(known, key=lambda value: abs(value) if column.better == 0 else -column.better * value)


def _with_spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = _number(float(np.mean(known)), digits)
    return mean if len(known) < 2 else f"{mean} ± {_number(float(np.std(known, ddof=1)), digits)}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:,.{digits}f}"

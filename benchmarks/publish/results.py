"""Finished cells as documents: ``python -m benchmarks.publish.results out=outputs/evaluation``.

Writes ``docs/results.csv`` and ``docs/runs.csv``, a page and a picture for each data set with cells below ``out``, and
the index of all pages. What other evaluations wrote about other data sets stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.goals import goal_table
from benchmarks.publish.markdown import table, write_page
from benchmarks.publish.plots import save_evaluation_plot
from cdmpp.errors import DataError
from cdmpp.evaluation.results import Result, collect, results_of, update_results

CellFile = Mapping[str, Any]
"""Content of a cell's file."""


@dataclass(frozen=True)
class Column:
    """A metric in a table."""

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
_INTERVALS = (("coverage", "holds %", 1), ("task_coverage", "by task %", 1), ("width", "width", 2))
_PARTS = {
    "by_op_class": "op class",
    "by_latency": "measured latency",
    "by_device": "device",
    "by_sets": "cache sets",
    "by_schedule": "schedule",
}
EXPLANATION = """\
Written by scripts; do not edit by hand. The figures are in [results.csv](../results.csv), the commands behind them in
[runs.csv](../runs.csv).

MAPE, median and p90 are absolute percentage errors of the latency of held-out programs; "within" is the share of
programs with at most that error. Spearman is the mean rank correlation inside a device's tasks of at least five
programs. Top-k is the latency of the best of the k programs predicted fastest over that of the task's measured
fastest (geometric mean over tasks; weighted: ratio of sums over tasks, weighted by call sites). Task MAPE is the mean
of the tasks' MAPEs. Bias at best is the mean signed error at each task's measured-fastest program. What trained
models and trees answer is scaled by one factor that gives the least MAPE on the validation part. Figures are mean ±
standard deviation over seeds. Prediction intervals are calibrated on the validation part by split conformal
prediction over tasks: "holds" is the share of test programs whose measured latency lies inside, "by task" the mean of
the tasks' shares, "width" the median ratio of upper to lower bound; those of trees have one width for all programs.
"""


def publish(out: str, docs: str, name: str | None = None) -> None:
    """Write all cells below ``out``, or those of the data set ``name``, into the folder ``docs``."""
    cells, folder = collect(Path(out), name), Path(docs)
    if not cells:
        raise DataError(f"no finished cells in {out}; run `cdmpp model evaluate` first")
    for dataset in sorted({cell["dataset"] for cell in cells}):
        own = [cell for cell in cells if cell["dataset"] == dataset]
        image = folder / "images" / f"{dataset}-mape.png"
        save_evaluation_plot(image, own, f"{dataset}: error on held-out programs")
        put_page(
            folder, dataset, [*data_set_page(dataset, own), f"![{image.stem}](../images/{image.name})"], results_of(own)
        )


def put_page(docs: Path, dataset: str, lines: Iterable[str], results: Sequence[Result]) -> None:
    """Put ``results`` and the page of a data set in place of older ones; the index follows."""
    write_page(docs / "results" / f"{dataset}.md", lines)
    write_page(docs / "results" / "index.md", index_page(update_results(docs, results)))


OTHER_PAGES = {
    "accuracy": "errors of the models in one table, ablations, unseen cores and GPUs",
    "astra-sim": "steps that ASTRA-sim runs from Chakra traces, beside the own replay",
    "benchmarks": "speed and memory, as ratios within one run",
    "builds": "what became faster since the first release, in two builds asked in turns",
    "checkpoints": "peak memory and calls of checkpointed steps beside PyTorch's own",
    "collectives": "errors of predicted collectives on hidden sizes, rank counts and links",
    "counts": "executed instructions of CPU programs beside those counted in their machine code",
    "eager": "framework operators: unseen sizes, unseen devices, whole networks",
    "exchanges": "counted bytes of jobs on several ranks beside those of processes that exchange",
    "expressions": "expressions fitted to tables of runs, beside other ways to predict them",
    "importers": "what TVM imports of ONNX and PyTorch, operator by operator",
    "intervals": "how often intervals hold, by kind of programs left out",
    "large-jobs": "jobs of large language models: plans beside public measurements on up to 1,024 GPUs",
    "lowered-programs": "why programs are lowered before their features are read, and how many",
    "networks": "predicted and measured times of whole networks",
    "new-devices": "what labels of a new device bring",
    "parameter-servers": "parameter servers and synchronies beside public measurements",
    "partition": "networks cut over devices: speed-up, bounds, greedy and equal cuts beside",
    "partition-runs": "networks cut into stages, trained by real processes and predicted",
    "peers": "plans judged a second, and their order, beside other projects",
    "plan-memory": "memory of ranks of large public jobs, and of small ones run here, beside that of their plans",
    "plans": "parallel plans: the oracle beside public measurements and real runs",
    "profiles": "where the processor seconds of both builds go, by stage, and errors of several seeds",
    "saved-activations": "bytes that autograd keeps of each operator, predicted and counted",
    "searches": "searches of MetaSchedule with and without this cost model",
    "sheets": "numbers of the described devices, checked against each other",
    "synchrony": "jobs of workers and parameter servers, replayed and measured here",
    "traces": "public traces of three projects, read and counted",
    "training-jobs": "real jobs on several ranks, replayed and predicted",
    "training-steps": "training steps compared with autograd and with measured steps",
}
"""Pages that other scripts write, each named at its head."""


def index_page(results: Sequence[Result]) -> list[str]:
    """Lines of ``docs/results/index.md``."""
    by_dataset: dict[str, list[Result]] = {}
    for result in results:
        by_dataset.setdefault(result.dataset, []).append(result)
    rows = [
        (f"[{name}]({name}.md)", *(", ".join(sorted({getattr(r, key) for r in own})) for key in ("device", "split")))
        for name, own in sorted(by_dataset.items())
    ]
    pages = table(["data set", "tested on", "splits"], rows, left=3)
    goals = ["## Targets", "", "Means over seeds; `over`: the ratio to that model's figure.", "", *goal_table(results)]
    others = [f"- [{name}]({name}.md): {meaning}" for name, meaning in OTHER_PAGES.items()]
    return ["# Results", "", EXPLANATION, "## Data sets", "", *pages, "", "## Other pages", "", *others, "", *goals]


def data_set_page(dataset: str, cells: Sequence[CellFile]) -> list[str]:
    """Lines of the page of a data set, without its picture."""
    lines = [f"# {dataset}", ""]
    for device, noise in sorted(cells[0].get("noise", {}).items()):
        lines += [
            f"Noise floor of the labels of {device}: {noise['mean']:.2f} % mean, {noise['median']:.2f} % median, "
            f"{noise['p90']:.2f} % p90 deviation between measurements of the same program "
            f"({noise['n_programs']:,} programs measured again).",
            "",
        ]
    for split in dict.fromkeys(cell["split"] for cell in cells):
        own = [cell for cell in cells if cell["split"] == split]
        lines += [f"## {dataset}: {split}", "", _split_facts(own), "", *_metric_table(own), ""]
        if with_intervals := [cell for cell in own if cell.get("intervals")]:
            lines += ["Prediction intervals:", "", *_interval_table(with_intervals), ""]
        for part, title in _PARTS.items():
            if part not in ("by_device", "by_sets", "by_schedule") or all(len(cell.get(part, ())) > 1 for cell in own):
                lines += [f"MAPE % by {title}:", "", *_breakdown_table(own, part), ""]
    commands = dict.fromkeys(f"- `{cell['command']}` ({cell['date']})" for cell in cells if cell["command"])
    return [*lines, "Commands:", "", *commands, ""]


def _split_facts(cells: Sequence[CellFile]) -> str:
    """One sentence on what was held out; ranges where the seeds differ."""
    counts = [cell["split_counts"] for cell in cells]

    def span(key: str) -> str:
        low, high = min(c[key] for c in counts), max(c[key] for c in counts)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    seeds = len({cell["seed"] for cell in cells})
    parts = [f"{seeds} seed{'s' * (seeds > 1)}"]
    for part in ("train", "validation", "test"):
        parts.append(f"{part} {span(f'{part}_programs')} programs of {span(f'{part}_tasks')} tasks")
    if "test_networks" in counts[0]:
        networks = sorted({network for c in counts for network in c["test_networks"]})
        parts.append(f"held-out networks: {', '.join(networks)}")
        parts.append(f"shared tasks ({counts[0]['shared_rule']}): {span('shared_tasks')}")
    return "; ".join(parts) + "."


def _metric_table(cells: Sequence[CellFile]) -> list[str]:
    by_model = _by_model(cells)
    best = {c.metric: _best([_mean(own, c.metric) for own in by_model.values()], c) for c in COLUMNS}

    def figure(own: Sequence[CellFile], column: Column) -> str:
        text, mean = (
            _spread([cell["metrics"].get(column.metric) for cell in own], column.digits),
            _mean(own, column.metric),
        )
        return f"**{text}**" if mean is not None and mean == best[column.metric] else text

    rows = [[model, len(own), *(figure(own, column) for column in COLUMNS)] for model, own in by_model.items()]
    return table(["model", "seeds", *(column.title for column in COLUMNS)], rows)


def _interval_table(cells: Sequence[CellFile]) -> list[str]:
    levels = sorted({level for cell in cells for level in cell["intervals"]})
    columns = [(level, *rest) for level in levels for rest in _INTERVALS]
    rows = [
        [
            model,
            len(own),
            *(_spread([c["intervals"].get(at, {}).get(key) for c in own], n) for at, key, _, n in columns),
        ]
        for model, own in _by_model(cells).items()
    ]
    titles = [f"{100 * float(level):g} % {title}" for level, _, title, _ in columns]
    return table(["model", "seeds", *titles], rows)


def _breakdown_table(cells: Sequence[CellFile], part: str) -> list[str]:
    labels = sorted({label for cell in cells for label in cell[part]})
    titles = []
    for label in labels:
        sizes = [cell[part][label]["n_programs"] for cell in cells if label in cell[part]]
        titles.append(f"{label.split(': ')[-1]} (n={round(np.mean(sizes)):,})")
    rows = [
        [model, *(_spread([cell[part].get(label, {}).get("mape") for cell in own], 1) for label in labels)]
        for model, own in _by_model(cells).items()
    ]
    return table(["model", *titles], rows)


def _by_model(cells: Iterable[CellFile]) -> dict[str, list[CellFile]]:
    """Worst mean MAPE first, so that a table ends with what is best."""
    groups: dict[str, list[CellFile]] = {}
    for cell in cells:
        groups.setdefault(cell["model"], []).append(cell)
    return dict(sorted(groups.items(), key=lambda item: -(_mean(item[1], "mape") or 0.0)))


def _mean(cells: Sequence[CellFile], metric: str) -> float | None:
    values = [cell["metrics"][metric] for cell in cells if metric in cell["metrics"]]
    return float(np.mean(values)) if values else None


def _best(values: Iterable[float | None], column: Column) -> float | None:
    finite = [value for value in values if value is not None]
    return min(finite, key=lambda value: -column.better * value if column.better else abs(value), default=None)


def _spread(values: Iterable[float | None], digits: int) -> str:
    """Mean, and standard deviation where there are several."""
    present = [value for value in values if value is not None]
    if not present:
        return "–"
    mean = f"{np.mean(present):,.{digits}f}"
    return mean if len(present) < 2 else f"{mean} ± {np.std(present, ddof=1):,.{digits}f}"


if __name__ == "__main__":
    run(publish, out="outputs/evaluation", docs="docs", name=None)

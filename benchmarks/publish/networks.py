"""The measured networks of ``docs/results/networks.md``, and what the package knows of their errors.

``python -m benchmarks.publish.networks out=outputs/networks`` adds the cells of ``cdmpp model evaluate-networks`` to
``docs/networks.csv`` (a row that is there already is replaced) and writes the tables between ``<!-- figures -->`` and
``<!-- /figures -->``, and ``network/errors.json``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import replace_part, table
from cdmpp import devices
from cdmpp.evaluation.network_row import NetworkRow, coverage, network_errors, read_rows, summary, write_rows
from cdmpp.evaluation.network_session import rows_of
from cdmpp.evaluation.networks import read_cells
from cdmpp.network.interval import ERRORS_FILE
from cdmpp.platform.files import write_json
from cdmpp.predict.catalogue import models


def page(rows: Sequence[NetworkRow]) -> str:
    """All tables as Markdown."""
    parts = []
    heads = ["device", "schedule", "predicted by", "networks"]
    heads += ["n", "replay", "without cold caches", "sum of kernels", "worst", "bias"]
    lines = [
        [
            f"`{line['device']}`",
            f"`{line['schedule']}`",
            f"`{line['model']}`",
            "held out" if line["held_out"] else "trained on",
            str(line["networks"]),
            *(f"{line[f'{name}_percent']:.1f}" for name in ("replay", "without_cold", "sum", "worst", "bias")),
        ]
        for line in summary(rows)
    ]
    parts += ["Errors of the predicted time in percent of the measured time, means of absolute values:", ""]
    parts += table(heads, lines, left=4)
    rows = [row for row in rows if row.model in shipped()]
    heads = ["device", "network", "batch", "schedule", "measured, ms", "predicted"]
    heads += ["error, %", "kernels", "cold", "overhead", "eager PyTorch, ms", "planned / live memory"]
    lines = []
    for row in sorted(rows, key=lambda one: (one.device, one.schedule, not one.held_out, one.network, one.batch)):
        errors = (row.replay_error, row.kernels_error, row.cold_error, row.overhead_error)
        name = f"**{row.network}**" if row.held_out else row.network
        times = [f"{1e3 * row.measured_s:.4g}", f"{1e3 * row.predicted_s:.4g}"]
        eager = "-" if row.eager_pytorch_s is None else f"{1e3 * row.eager_pytorch_s:.4g}"
        what = [f"`{row.device}`", name, str(row.batch), f"`{row.schedule}`"]
        memory = f"{row.planned_bytes / row.activation_bytes:.2f}"
        lines.append([*what, *times, *(f"{100 * error:+.1f}" for error in errors), eager, memory])
    parts += ["", "Each network; those in bold were held out. The error is the sum of the three parts after it:", ""]
    parts += table(heads, lines, left=2)
    parts += times_eager(rows)
    told = []
    for device, by_model in network_errors(row for row in rows if row.held_out).items():
        for model, kinds in by_model.items():
            for kind, logs in kinds.items():
                if (share := coverage(logs, 0.8)) is not None:
                    told.append(f"{share:.0%} of {len(logs)} networks (`{device}`, model `{model}`, {kind})")
    if told:
        text = "The 80 % interval that the other held-out networks make holds " + "; ".join(told) + "."
        parts += ["", text]
    return "\n".join(parts)


def times_eager(rows: Sequence[NetworkRow]) -> list[str]:
    """Lines of a table: measured time over that of eager PyTorch, where a network ran with several ``best_of``."""
    ratios: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in rows:
        kind, _, k = row.schedule.partition(":")
        if kind == "best_of" and row.times_eager:
            ratios.setdefault((row.device, row.network, row.batch), {})[int(k)] = row.times_eager
    several = {key: found for key, found in sorted(ratios.items()) if len(found) > 1}
    if not several:
        return []
    columns = sorted({k for found in several.values() for k in found})
    heads = ["device", "network", "batch", *(f"best of {k}" for k in columns)]
    lines = [
        [f"`{device}`", network, str(batch), *(f"{found[k]:.2f}" if k in found else "-" for k in columns)]
        for (device, network, batch), found in several.items()
    ]
    every = [found for found in several.values() if len(found) == len(columns)]
    means = [math.exp(sum(math.log(found[k]) for found in every) / len(every)) for k in columns] if every else []
    lines += [["all", "", "", *(f"{mean:.2f}" for mean in means)]] if means else []
    title = "Measured time over that of eager PyTorch; `all` is the geometric mean:"
    return ["", title, "", *table(heads, lines, left=2)]


def main(out: str, docs: str) -> None:
    """See above."""
    cells, folder = read_cells(Path(out)), Path(docs)
    new = rows_of(cells, {name: devices.get(name) for name in {cell.device for cell in cells}})
    published = folder / "networks.csv"
    found = {row.key: row for row in (*(read_rows(published) if published.exists() else ()), *new)}
    rows = [found[key] for key in sorted(found)]
    write_rows(published, rows)
    replace_part(folder / "results" / "networks.md", "figures", page(rows))
    write_json(ERRORS_FILE, network_errors(row for row in rows if row.held_out and row.model in shipped()))


def shipped() -> set[str]:
    """Names of the models that come with the package."""
    return {entry.name for entry in models()}


if __name__ == "__main__":
    run(main, out="outputs/networks", docs="docs")

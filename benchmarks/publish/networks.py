"""The measured networks of ``docs/networks.md``, and what the package knows of their errors.

``python -m benchmarks.publish.networks out=outputs/networks`` reads the cells of ``cdmpp evaluate-networks`` and writes
``docs/networks.csv``, the tables between ``<!-- figures -->`` and ``<!-- /figures -->``, and ``network/errors.json``.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import replace_part, table
from cdmpp import devices
from cdmpp.data.files import write_atomic, write_json
from cdmpp.devices import Device
from cdmpp.evaluation.network_session import PARTS, summary
from cdmpp.evaluation.networks import NetworkCell, coverage, network_errors, read_cells
from cdmpp.network.interval import ERRORS_FILE
from cdmpp.predict.catalogue import models


def rows(cells: Sequence[NetworkCell], sheets: dict[str, Device]) -> list[dict[str, Any]]:
    """A row a cell: seconds, and errors as shares of the measured time."""
    found = []
    for cell in cells:
        errors = cell.errors(sheets[cell.device])
        found.append(
            {
                "device": cell.device,
                "model": cell.model,
                "schedule": cell.schedule,
                "network": cell.network,
                "batch": cell.batch,
                "held_out": cell.held_out,
                "calls": len(cell.calls),
                "measured_s": cell.measured_s,
                "predicted_s": cell.measured_s * (1 + errors["replay"]),
                "eager_pytorch_s": cell.eager_s,
                "planned_bytes": cell.planned_bytes,
                "activation_bytes": cell.activation_bytes,
                **{f"{name}_error": errors[name] for name in PARTS},
            }
        )
    return found


def page(cells: Sequence[NetworkCell], sheets: dict[str, Device]) -> str:
    """Both tables as Markdown."""
    parts = []
    heads = ["device", "schedule", "predicted by", "networks"]
    heads += ["n", "replay", "without cold caches", "sum of kernels", "worst", "bias"]
    lines = [
        [
            f"`{row['device']}`",
            f"`{row['schedule']}`",
            f"`{row['model']}`",
            "held out" if row["held_out"] else "trained on",
            str(row["networks"]),
            *(f"{row[f'{name}_percent']:.1f}" for name in ("replay", "without_cold", "sum", "worst", "bias")),
        ]
        for row in summary(cells, sheets)
    ]
    parts += ["Errors of the predicted time in percent of the measured time, means of absolute values:", ""]
    parts += table(heads, lines, left=4)
    cells = [cell for cell in cells if cell.model in shipped()]
    heads = ["device", "network", "batch", "schedule", "measured, ms", "predicted"]
    heads += ["error, %", "kernels", "cold", "overhead", "eager PyTorch, ms", "planned / live memory"]
    lines = []
    for cell in sorted(cells, key=lambda one: (one.device, one.schedule, not one.held_out, one.network, one.batch)):
        errors = cell.errors(sheets[cell.device])
        shown = [f"{100 * errors[name]:+.1f}" for name in ("replay", "kernels", "cold", "overhead")]
        name = f"**{cell.network}**" if cell.held_out else cell.network
        times = [f"{1e3 * cell.measured_s:.4g}", f"{1e3 * cell.measured_s * (1 + errors['replay']):.4g}"]
        eager = "-" if cell.eager_s is None else f"{1e3 * cell.eager_s:.4g}"
        memory = f"{cell.planned_bytes / cell.activation_bytes:.2f}"
        lines.append([f"`{cell.device}`", name, str(cell.batch), f"`{cell.schedule}`", *times, *shown, eager, memory])
    parts += ["", "Each network; those in bold were held out. The error is the sum of the three parts after it:", ""]
    parts += table(heads, lines, left=2)
    parts += times_eager(cells)
    told = []
    for device, by_model in network_errors([c for c in cells if c.held_out], sheets).items():
        for model, kinds in by_model.items():
            for kind, errors in kinds.items():
                if (share := coverage(errors, 0.8)) is not None:
                    told.append(f"{share:.0%} of {len(errors)} networks (`{device}`, model `{model}`, {kind})")
    if told:
        text = "The 80 % interval that the other held-out networks make holds " + "; ".join(told) + "."
        parts += ["", text]
    return "\n".join(parts)


def times_eager(cells: Sequence[NetworkCell]) -> list[str]:
    """Lines of a table: measured time over that of eager PyTorch, where a network ran with several ``best_of``."""
    ratios: dict[tuple[str, str, int], dict[int, float]] = {}
    for cell in cells:
        kind, _, k = cell.schedule.partition(":")
        if kind == "best_of" and cell.eager_s:
            ratios.setdefault((cell.device, cell.network, cell.batch), {})[int(k)] = cell.measured_s / cell.eager_s
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
    sheets = {name: devices.get(name) for name in {cell.device for cell in cells}}
    found, stream = rows(cells, sheets), io.StringIO()
    writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in found)
    write_atomic(folder / "networks.csv", lambda path: path.write_text(stream.getvalue()))
    replace_part(folder / "networks.md", "figures", page(cells, sheets))
    known = [cell for cell in cells if cell.held_out and cell.model in shipped()]
    write_json(ERRORS_FILE, network_errors(known, sheets))


def shipped() -> set[str]:
    """Names of the models that come with the package."""
    return {entry.name for entry in models()}


if __name__ == "__main__":
    run(main, out="outputs/networks", docs="docs")

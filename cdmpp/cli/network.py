"""``cdmpp network``: the time of a whole network, as a table, JSON, CSV, a trace or a page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.output import console, print_json, print_table, say
from cdmpp.errors import CdmppError
from cdmpp.network.runtime import RUNTIMES

if TYPE_CHECKING:
    from cdmpp.network.prediction import NetworkPrediction

_NETWORK = """torchvision:resnet50, hf:bert-base-uncased (its architecture; weights are random), model.onnx, the name of
a network of the zoo, or my_file.py:make_model. The last RUNS that Python file and calls its function make_model: give
only files that you trust"""
_LONGEST = 40
"""Letters of a kernel's name in the table."""
_DROPPED = ("data", "work", "rate", "cold extra", "bound by", "flags", "op class", "one call", "interval")
"""Columns that a narrow terminal does not show, the first to go first; CSV, JSON and the report have all."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--device", required=True, help="name of a device, see `cdmpp devices`")
    add_network_arguments(verb)
    verb.add_argument("--rows", type=int, default=20, help="rows of the table, most time first; 0 = all (default 20)")
    verb.add_argument("--json", action="store_true", help="machine-readable, all kernels")
    verb.add_argument("--csv", type=Path, metavar="FILE", help="also write all kernels as CSV")
    verb.add_argument("--trace", type=Path, metavar="FILE", help="also write the timeline for ui.perfetto.dev")
    verb.add_argument("--html", type=Path, metavar="FILE", help="also write a report with charts, one file")
    verb.add_argument("--measure", action="store_true", help="also run kernels and network here, which is the device")


def add_network_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare which network, and how it runs."""
    add_graph_arguments(verb)
    rule = "best_of:K (the best of K sampled schedules by prediction), untuned, or database:DIR (default best_of:16)"
    verb.add_argument("--schedule", help=rule)
    runtime = "tvm, whose programs are scheduled, or torch, whose libraries serve it eagerly (default tvm)"
    verb.add_argument("--runtime", choices=RUNTIMES, help=runtime)
    verb.add_argument("--train", action="store_true", help="with --runtime torch: forward and backward pass")


def add_graph_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare which network, and of which shapes."""
    verb.add_argument("network", metavar="NETWORK", help=" ".join(_NETWORK.split()))
    verb.add_argument("--batch", type=int, help="examples in one run, where the network leaves it open")
    shape = "shape of an input, for example x=1,3,224,224; once for each input"
    verb.add_argument("--input", action="append", default=[], metavar="NAME=SHAPE", help=shape)
    verb.add_argument("--dtype", default="float32", choices=("float32", "float16"), help="default float32")
    verb.add_argument("--model", help="model folder or name of a shipped one (default: one trained on the device)")


def run(options: argparse.Namespace) -> None:
    """Print the table or the JSON, write the files, and say each warning on a line of its own."""
    asked, files = network_options(options), (options.csv, options.trace, options.html)
    check_files(files)
    if options.rows < 0:
        raise CdmppError(f"--rows {options.rows}: expected 0, for all, or more")
    if options.measure and asked.get("runtime") == "torch":
        raise CdmppError("--measure is of --runtime tvm: PyTorch's own kernels are not timed here yet")
    import cdmpp

    extra: dict[str, Any] = {"measure": True} if options.measure else {}
    prediction = cdmpp.predict_network(
        options.network, device=options.device, progress=sys.stderr.isatty(), **extra, **asked
    )
    for warning in prediction.warnings:
        say(warning)
    if options.json:
        print_json(prediction.to_dict())
    else:
        _print(prediction, options.rows)
    for path, save in zip(files, (prediction.save_csv, prediction.save_trace, prediction.save_html), strict=True):
        if path is not None:
            save(path)
            say(f"wrote {path}")


def network_options(options: argparse.Namespace) -> dict[str, Any]:
    """What ``add_network_arguments`` read, as ``predict_network`` takes it; ``CdmppError`` where it cannot be."""
    if options.batch is not None and options.batch < 1:
        raise CdmppError(f"--batch {str(options.batch)[:40]}: must be at least 1")
    names = ("batch", "dtype", "schedule", "model", "runtime", "train")
    given = {name: value for name in names if (value := getattr(options, name, None)) not in (None, False)}
    by_torch = given.get("runtime") == "torch"
    if by_torch and "schedule" in given:
        raise CdmppError(
            f"--schedule {options.schedule} is of --runtime tvm: libraries choose their kernels themselves"
        )
    if "train" in given and not by_torch:
        raise CdmppError("--train is of --runtime torch: training steps of TVM programs are not predicted yet")
    return {"inputs": _shapes(options.input), **given}


def check_files(paths: Sequence[Path | None]) -> None:
    """``CdmppError`` where one cannot be written: better now than after minutes of predicting."""
    given = [path for path in paths if path is not None]
    if len(set(given)) < len(given):
        raise CdmppError("two outputs have the same file name: the second would replace the first")
    for path in given:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            why = "it is a folder" if path.is_dir() else f"{folder} is no folder that you may write to"
            raise CdmppError(f"cannot write {path}: {why}")


def _shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """``["x=1,3,224,224"]`` -> ``{"x": (1, 3, 224, 224)}``; None without."""
    shapes = {}
    for one in given:
        name, _, numbers = one.rpartition("=")
        try:
            shape = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1 or name in shapes:
            raise CdmppError(f"--input {one}: give NAME=SHAPE once for each input, for example x=1,3,224,224")
        shapes[name] = shape
    return shapes or None


def _print(prediction: NetworkPrediction, most: int) -> None:
    from rich.markup import escape

    from cdmpp.report.report import COLUMNS, TEXTS, headings, shown_level, table
    from cdmpp.units import percent, quantity

    console().print(prediction.summary(), markup=False, highlight=False, soft_wrap=True)
    rows, level = table(prediction), shown_level(prediction)
    shown = rows[:most] if most > 0 else rows
    columns = {name: [_short(COLUMNS[name][1](row)) for row in shown] for name in headings(shown)}
    if rest := rows[len(shown) :]:
        seconds, share = (sum(row[key] for row in rest) for key in ("total_s", "share"))
        told = {"calls": str(sum(row["count"] for row in rest)), "total": quantity(seconds, "s")}
        told |= {"kernel": f"{len(rest)} more (--rows 0 shows all)", "share": percent(share)}
        for name, cells in columns.items():
            cells.append(told.get(name, ""))
    if "interval" in columns and level:
        columns = {f"{100 * level:g} % {name}" if name == "interval" else name: columns[name] for name in columns}
    columns = _fitting(columns, console().width)
    lines = [[escape(cell) for cell in cells] for cells in zip(*columns.values(), strict=True)]
    print_table("Kernels, most time first", list(columns), lines, right=[name for name in columns if name not in TEXTS])


def _short(cell: str) -> str:
    return cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 1]}…"


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """Those for which there is room, with a margin of 3 each."""
    kept = dict(columns)
    for dropped in _DROPPED:
        if sum(3 + max(map(len, (name, *cells))) for name, cells in kept.items()) < width:
            break
        kept = {name: cells for name, cells in kept.items() if not name.endswith(dropped)}
    return kept

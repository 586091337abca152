"""``cdmpp data summary``: what data is here, in numbers and pictures."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.output import format_seconds, print_json, print_table, say
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import path

if TYPE_CHECKING:
    from cdmpp.data.statistics import DeviceStatistics
    from cdmpp.data.summary import DataSummary


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--path", type=path, action="append", default=[], help="a further folder to look in")
    verb.add_argument("--plots", type=path, metavar="DIR", help="save pictures of the data sets there")
    verb.add_argument("--json", action="store_true", help="machine-readable, with networks x op classes")


def run(options: argparse.Namespace) -> None:
    """Print the tables or the JSON."""
    if missing := [str(folder) for folder in options.path if not folder.is_dir()]:
        raise CdmppError(f"no such folder: {', '.join(missing)}")
    from cdmpp.data.summary import details, known_paths, summarise

    paths = known_paths(options.path)
    entries = sorted(summarise(paths), key=lambda entry: (entry.device, str(entry.folder)))
    readable = details(entries)
    if options.plots is not None:
        from cdmpp.data.plots import save_data_plots

        if not readable:
            raise CdmppError("there is no data set to draw; give its folder with --path")
        for picture in save_data_plots(options.plots, [statistics for _, statistics in readable]):
            print(picture, file=sys.stderr)
    if options.json:
        numbers = {(folder, statistics.device): statistics.plain() for folder, statistics in readable}
        print_json([{**plain(entry), "statistics": numbers.get((entry.folder, entry.device))} for entry in entries])
    elif not entries:
        say(
            f"no data is here; looked in {', '.join(map(str, paths)) or 'datasets'} and in $CDMPP_DATA. "
            "`cdmpp model train --device a100` downloads some, `cdmpp data measure` and `cdmpp data import` make some"
        )
    else:
        _print_places(entries, paths)
        if readable:
            _print_numbers(readable)


def plain(entry: DataSummary) -> dict[str, Any]:
    """As JSON."""
    return {**dataclasses.asdict(entry), "folder": str(entry.folder)}


def _print_places(entries: Sequence[DataSummary], paths: Sequence[Path]) -> None:
    """A row a folder and device."""
    rows, counts = [], ("programs", "tasks")
    for entry in entries:
        numbers = ["?" if (count := getattr(entry, name)) is None else str(count) for name in counts]
        kind = entry.features if entry.features != "cdmpp" else ""
        form = " ".join(filter(None, (entry.form, kind, entry.note)))
        rows.append((entry.device, *numbers, form, str(entry.folder)))
    caption = f"looked in {', '.join(map(str, paths))} ($CDMPP_DATA adds folders)"
    print_table("Data", ("device", *counts, "form", "folder"), rows, right=counts, caption=caption)


def _print_numbers(readable: Sequence[tuple[Path, DeviceStatistics]]) -> None:
    """A row a data set and device: latencies, noise of the labels, quality of the schedules; then op classes."""
    from cdmpp.data.statistics import quantiles

    columns: dict[str, Callable[[DeviceStatistics], str]] = {
        "networks": lambda e: str(e.networks),
        "latency p10 / p50 / p90": lambda e: " / ".join(map(format_seconds, quantiles(e.latency_s))),
        "two best visits differ by, mean": lambda e: f"{100 * e.spread.mean():.2f} %",
        "measured again, mean change": lambda e: "-" if e.noise is None else f"{100 * e.noise.mean:.2f} %",
        "slowest / fastest schedule, p10 / p50 / p90": lambda e: (
            " / ".join(f"{value:.3g}" for value in quantiles(e.schedule_range)) or "-"
        ),
        "not recorded": lambda e: str(sum(e.failures.values())),
    }
    names = [
        folder.name if folder.name == entry.device else f"{folder.name} ({entry.device})" for folder, entry in readable
    ]
    entries = [entry for _, entry in readable]
    rows = [(name, *(value(entry) for value in columns.values())) for name, entry in zip(names, entries, strict=True)]
    print_table("In numbers", ("data set", *columns), rows, right=columns)
    classes = list(dict.fromkeys(name for entry in entries for name in entry.programs_by_class))
    counts = [
        (name, *(f"{entry.programs_by_class.get(one, 0):,}" for one in classes))
        for name, entry in zip(names, entries, strict=True)
    ]
    print_table("Programs by operator", ("data set", *classes), counts, right=classes)

"""The ``cdmpp`` command. Each verb imports what it needs, so that ``cdmpp devices`` starts without torch or TVM."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp import __version__, devices
from cdmpp.cli import predict as cli_predict
from cdmpp.cli.output import console, format_seconds, print_json, say
from cdmpp.errors import CdmppError

if TYPE_CHECKING:
    from rich.table import Table

    from cdmpp.data.statistics import DeviceStatistics

# Verbs with a configuration: their arguments are key=value overrides.
_CONFIGURED = {
    "train": ("train", "train a model on the records of a device"),
    "evaluate": ("evaluate", "models and baselines on the named splits"),
    "import": ("import_data", "bring a tuning database into the record format"),
    "measure": ("measure", "measure tensor programs on this machine"),
    "finetune": ("finetune", "bring a model to a new device with few measured tasks"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 wrong input (one line on stderr), 130 stopped by Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given[:1] if given[:1] and given[0] in _CONFIGURED else given)
    run: Callable[[argparse.Namespace], int] = options.run
    options.rest = given[1:]
    try:
        return run(options)
    except CdmppError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("stopped. What was derived so far is kept: the same command goes on from there")
        return 130
    except BrokenPipeError:  # the reader of a pipe, head for one, has seen enough
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cdmpp", description="Predict how long a tensor program runs on a device.")
    parser.add_argument("--version", action="version", version=f"cdmpp {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    verb = verbs.add_parser("devices", help="list the devices, with the data and the models that are here for each")
    verb.add_argument("--json", action="store_true", help="machine-readable, all numbers with their sources")
    verb.set_defaults(run=_devices)

    verb = verbs.add_parser("models", help="list the trained models that are here, with the figures of their cards")
    verb.add_argument("--json", action="store_true", help="machine-readable")
    verb.set_defaults(run=_models)

    verb = verbs.add_parser("predict", help="predict latencies")
    cli_predict.add_arguments(verb)

    verb = verbs.add_parser("data", help="what data is here; or, `data codes`: compile its programs for code vectors")
    verb.add_argument("what", nargs="?", choices=["summary", "codes"], default="summary")
    verb.add_argument("--path", type=Path, action="append", default=[], help="a further folder to look in")
    verb.add_argument("--plots", type=Path, metavar="DIR", help="save pictures of the data sets there")
    verb.add_argument("--json", action="store_true", help="machine-readable, with networks x op classes")
    verb.add_argument("--ship", action="store_true", help="codes: write them into the data set instead of the cache")
    verb.add_argument("--workers", type=int, default=2, help="codes: processes that compile (default 2)")
    verb.set_defaults(run=_data)

    for name, (module, text) in _CONFIGURED.items():
        verb = verbs.add_parser(name, help=f"{text}; key=value settings, --help lists them", add_help=False)
        verb.set_defaults(run=_configured, verb=name, module=module)
    return parser


def _devices(options: argparse.Namespace) -> int:
    from rich.table import Table

    from cdmpp.data.summary import search_paths, summarise
    from cdmpp.predict.catalogue import models

    data = summarise(search_paths())
    here = [entry for entry in models() if entry.usable]
    rows = [
        (
            device,
            [entry for entry in data if entry.device == device.name],
            [entry.name for entry in here if device.name in entry.devices],
        )
        for device in devices.all_devices()
    ]
    if options.json:
        print_json([_device_dict(device, found, names) for device, found, names in rows])
        return 0
    table = Table(title="Devices", caption="- : not published")
    for heading in ("name", "kind", "what it is"):
        table.add_column(heading, no_wrap=heading == "name", overflow="fold")
    for heading in ("cores", "MHz", "fp32 TFLOP/s", "GB/s", "GB"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("data", "model"):
        table.add_column(heading, overflow="fold")
    for device, found, names in rows:
        keys = ("core_count", "clock_mhz", "fp32_tflops", "bandwidth_gbps", "memory_gb")
        numbers = ["-" if device.spec[key] is None else f"{device.spec[key]:.4g}" for key in keys]
        held = ", ".join(f"{entry.programs} programs" if entry.programs else entry.folder.name for entry in found)
        table.add_row(device.name, device.kind, device.title, *numbers, held, ", ".join(names))
    console().print(table)
    return 0


_CAPTION = """MAPE and median error in %. "80 % is": what can be promised of intervals of that level,
"holds": how many test programs lay inside. The card.json in a model's folder says more"""


def _models(options: argparse.Namespace) -> int:
    from rich.table import Table

    from cdmpp.predict.catalogue import models

    rows = [entry.summary() for entry in models()]
    if options.json:
        print_json(rows)
        return 0
    table = Table(title="Models", caption=_CAPTION)
    table.add_column("model", overflow="fold", no_wrap=all(len(row["name"]) <= 24 for row in rows))
    table.add_column("figures of", overflow="fold")
    for heading in ("MAPE", "median", "Spearman", "top-1", "80 % is", "holds"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("made", overflow="fold")
    keys = {"mape": ".1f", "median_ape": ".1f", "spearman_within_task": ".3f", "top1_regret": ".3f"}
    for row in rows:
        numbers = ["-" if row[key] is None else format(row[key], form) for key, form in keys.items()]
        promise, holds = row["interval_promised"].get("0.8"), row["interval_coverage"].get("0.8")
        numbers += ["-" if promise is None else f"{100 * promise:.0f}", "-" if holds is None else f"{holds:.1f}"]
        made = row["created"][:10] if row["usable"] else row["state"]
        others = [f"  {device}" for device in row["devices"] if device != row["name"]]
        table.add_row("\n".join([row["name"], *others]), row["figures_of"], *numbers, made)
    console().print(table)
    for row in rows:
        if row["state"] == "damaged":
            console().print(f"{row['name']} is damaged: {row['problem']}", markup=False, soft_wrap=True)
    return 0


def _device_dict(device: devices.Device, data: Sequence[Any], models: list[str]) -> dict[str, Any]:
    spec = {key: {"value": device.spec[key], "source": device.sources[key]} for key in devices.SPEC_FIELDS}
    held = [{**dataclasses.asdict(entry), "folder": str(entry.folder)} for entry in data]
    plain = {"name": device.name, "title": device.title, "kind": device.kind, "target": device.target}
    return {**plain, "spec": spec, "data": held, "models": models}


def _data(options: argparse.Namespace) -> int:
    from rich.table import Table

    from cdmpp.data.summary import details, search_paths, summarise

    missing = [str(path) for path in options.path if not path.is_dir()]
    if missing:
        raise CdmppError(f"no such folder: {', '.join(missing)}")
    if options.what == "codes":
        return _codes(options)
    paths = search_paths(options.path)
    entries = summarise(paths)
    known = details(entries)
    if options.plots is not None:
        from cdmpp.data.plots import save_data_plots

        if not known:
            raise CdmppError("there is no data set to draw; give its folder with --path")
        for picture in save_data_plots(options.plots, [statistics for _, statistics in known]):
            print(picture, file=sys.stderr)
    if options.json:
        numbers = {(folder, statistics.device): statistics.plain() for folder, statistics in known}
        print_json(
            [
                {**dataclasses.asdict(e), "folder": str(e.folder), "statistics": numbers.get((e.folder, e.device))}
                for e in entries
            ]
        )
        return 0
    looked = ", ".join(map(str, paths)) or "no folder at all"
    table = Table(title="Data", caption=f"looked in {looked} ($CDMPP_DATA adds folders)")
    for heading, side in (("device", "left"), ("programs", "right"), ("tasks", "right"), ("form", "left")):
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=heading == "device")
    table.add_column("folder", overflow="fold")
    for entry in entries:
        counts = ["?" if count is None else str(count) for count in (entry.programs, entry.tasks)]
        table.add_row(entry.device, *counts, f"{entry.form} {entry.note}".strip(), str(entry.folder))
    console().print(table)
    if known:
        console().print(_data_numbers([statistics for _, statistics in known]))
    return 0


def _codes(options: argparse.Namespace) -> int:
    from cdmpp.data.codes import derive_codes

    if not options.path:
        raise CdmppError("which data set? Give its folder: cdmpp data codes --path datasets/xeon-icelake")
    for folder in options.path:
        print(f"{folder}: {derive_codes(folder, options.workers, ship=options.ship)} programs with a code vector")
    return 0


def _data_numbers(entries: Sequence[DeviceStatistics]) -> Table:
    """A column a device: sizes, latencies, noise of the labels, quality of the schedules, op classes."""
    from rich.table import Table

    from cdmpp.data.statistics import quantiles

    table = Table("", title="In numbers")
    for entry in entries:
        table.add_column(entry.device, overflow="fold")
    rows: dict[str, Callable[[DeviceStatistics], str]] = {
        "networks": lambda e: str(e.networks),
        "latency p10 / p50 / p90": lambda e: " / ".join(map(format_seconds, quantiles(e.latency_s))),
        "two best visits differ by, mean": lambda e: f"{100 * e.spread.mean():.2f} %",
        "measured again, mean change": lambda e: "-" if e.noise is None else f"{100 * e.noise.mean:.2f} %",
        "slowest / fastest schedule, p10 / p50 / p90": lambda e: (
            " / ".join(f"{value:.3g}" for value in quantiles(e.schedule_range)) or "-"
        ),
        "not recorded": lambda e: str(sum(e.failures.values())),
    }
    for name, value in rows.items():
        table.add_row(name, *map(value, entries))
    for op_class in dict.fromkeys(name for entry in entries for name in entry.programs_by_class):
        table.add_row(f"{op_class} programs", *(f"{e.programs_by_class.get(op_class, 0):,}" for e in entries))
    return table


def _configured(options: argparse.Namespace) -> int:
    sys.argv = [f"cdmpp {options.verb}", *options.rest]
    importlib.import_module(f"cdmpp.cli.{options.module}").main()
    return 0

"""``cdmpp compare``: one network on several devices, at one size or at many."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cdmpp.cli.network import add_network_arguments, runtime_options, workload_of
from cdmpp.cli.options import add_executor
from cdmpp.cli.output import add_output_arguments, check_output, say, show
from cdmpp.cli.parts import parts_of
from cdmpp.cli.sweep import add_sweep_argument, axes_of
from cdmpp.errors import CdmppError, UsageError
from cdmpp.execute.executor import is_here
from cdmpp.platform.limits import check_once, path, text


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--devices", type=text, required=True, help="names with commas between them, see `cdmpp devices`")
    add_network_arguments(verb)
    add_sweep_argument(verb)
    add_executor(verb)
    add_output_arguments(verb, "csv", "html")
    verb.add_argument("--plot", type=path, metavar="FILE", help="also write a picture, PNG; needs matplotlib")


def run(options: argparse.Namespace) -> None:
    """Predict on each device, and show the report."""
    runtime_options(options)
    check_output(options, options.plot)
    if options.plot is not None and options.plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {options.plot}: the picture is a PNG, so its name ends in .png")
    if options.sweep:
        axes_of(options.sweep)
        if options.plot is not None:
            raise UsageError("--plot does not go with --sweep here: `cdmpp network --sweep` draws one device")
    names = [name.strip() for name in options.devices.split(",") if name.strip()]
    check_once("devices", names)
    if not names:
        raise UsageError("no device to compare on: give the names of some, `cdmpp devices` lists them")
    progress, found = sys.stderr.isatty(), list[Any]()
    if is_here() and not options.sweep:
        import cdmpp

        asked = {**runtime_options(options), "progress": progress}
        found = list(cdmpp.compare_devices(workload_of(options), devices=names, **asked).answers)
    else:
        found = [part(options, name) for name in names] if is_here() else parts_of(options, names, "devices", progress)
    if options.sweep:
        from cdmpp.report.sweep import swept_devices_report

        show({"": swept_devices_report(found)}, options)
        return
    from cdmpp.network.comparison import Comparison
    from cdmpp.report.comparison import comparison_report
    from cdmpp.report.picture import write_picture

    report = comparison_report(Comparison.of(found))
    show({"": report}, options)
    if options.plot is not None:
        write_picture(report, options.plot)
        say(f"wrote {options.plot}")


def part(options: argparse.Namespace, device: str) -> Any:
    """Return the ``Answer`` for one device, or its ``Sweep``; ``CdmppError`` where a sweep has no answer there."""
    import cdmpp

    asked: dict[str, Any] = {**runtime_options(options), "progress": sys.stderr.isatty()}
    if options.sweep:
        return cdmpp.sweep_network(workload_of(options), axes=axes_of(options.sweep), device=device, **asked)
    from cdmpp.network.comparison import Answer

    try:
        return cdmpp.compare_devices(workload_of(options), devices=[device], **asked).answers[0]
    except CdmppError as error:
        return Answer(device, None, str(error))

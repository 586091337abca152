"""``cdmpp model calibrate``: a model for this machine, in three minutes, from a dozen or two of its kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp import devices
from cdmpp.cli.options import add_device, add_model
from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.errors import UsageError
from cdmpp.network.runtime import RUNTIMES
from cdmpp.platform.limits import Limits, numbers, path

_MODEL, _LIBRARY_MODEL = "cpus", "torch-gpus"
CALLS = 3


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    add_device(verb, "what this machine is: a name that `cdmpp devices` lists")
    runtime = "tvm: programs on a CPU; torch: PyTorch's operators on a CPU or GPU (default tvm)"
    verb.add_argument("--runtime", choices=RUNTIMES, default="tvm", help=runtime)
    calls = f"with --runtime torch: calls of each family (default {CALLS})"
    verb.add_argument("--calls", type=Limits(1, 10**6, "calls of each family"), help=calls)
    add_model(verb, "to scale (default cpus, or torch-gpus)")
    where = "folder for the records and the model (default outputs/DEVICE/calibrated, of torch calibrated-torch)"
    verb.add_argument("--out", type=path, help=where)
    minutes = numbers(0, 10**6, "minutes", above=True)
    late = "no new kernel is begun after this long (default 2.5)"
    verb.add_argument("--minutes", type=minutes, default=2.5, help=late)
    force = "store factors that were measured on a busy machine, or that make the answers worse, too"
    verb.add_argument("--force", action="store_true", help=force)
    add_output_arguments(verb, "csv", "html")


def run(options: argparse.Namespace) -> None:
    """Measure, scale, show what it brought."""
    check_output(options)
    from cdmpp.recipes.calibrate import CalibrateSettings, calibrate
    from cdmpp.report.calibration import calibration_report

    device = devices.get(options.device)
    by_torch = options.runtime == "torch"
    if options.calls is not None and not by_torch:
        raise UsageError(
            f"--calls {options.calls} counts PyTorch's operators: add --runtime torch, or leave it out to time programs"
        )
    out = options.out or Path("outputs") / device.name / ("calibrated-torch" if by_torch else "calibrated")
    start = options.model or (_LIBRARY_MODEL if by_torch else _MODEL)
    calls = CALLS if options.calls is None else options.calls
    asked = (options.minutes, not options.json, options.runtime, calls, options.force)
    found = calibrate(CalibrateSettings(device.name, out, start, *asked))
    what = "op OPERATOR SIZES" if by_torch else "PROGRAM"
    model = f"{out / 'model'}; `cdmpp predict {what} --device {device.name}` uses it from here"
    show({"": calibration_report(found, model)}, options)

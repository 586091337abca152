"""``cdmpp model calibrate``: a model for this machine, in three minutes, from a dozen or two of its kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp import devices
from cdmpp.cli.output import print_json, say
from cdmpp.errors import CdmppError
from cdmpp.network.runtime import RUNTIMES
from cdmpp.platform.limits import Limits, numbers, path, text

_MODEL, _LIBRARY_MODEL = "cpus", "torch-gpus"
CALLS = 3


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument(
        "--device", type=text, required=True, help="what this machine is: a name that `cdmpp devices` lists"
    )
    runtime = "tvm: programs on a CPU; torch: PyTorch's operators on a CPU or GPU (default tvm)"
    verb.add_argument("--runtime", choices=RUNTIMES, default="tvm", help=runtime)
    calls = f"with --runtime torch: calls of each family (default {CALLS})"
    verb.add_argument("--calls", type=Limits(1, 10**6, "calls of each family"), help=calls)
    verb.add_argument(
        "--model", type=text, help="model folder or name of a shipped one to scale (default cpus, or torch-gpus)"
    )
    where = "folder for the records and the model (default outputs/DEVICE/calibrated, of torch calibrated-torch)"
    verb.add_argument("--out", type=path, help=where)
    minutes = numbers(0, 10**6, "minutes", above=True)
    late = "no new kernel is begun after this long (default 2.5)"
    verb.add_argument("--minutes", type=minutes, default=2.5, help=late)
    verb.add_argument("--force", action="store_true", help="store factors that were measured on a busy machine, too")
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Measure, scale, say what it brought."""
    from cdmpp.measure.disturbance import Disturbance
    from cdmpp.recipes.calibrate import CalibrateSettings, calibrate

    device = devices.get(options.device)
    by_torch = options.runtime == "torch"
    if options.calls is not None and not by_torch:
        raise CdmppError(
            f"--calls {options.calls} counts PyTorch's operators: add --runtime torch, or leave it out to time programs"
        )
    out = options.out or Path("outputs") / device.name / ("calibrated-torch" if by_torch else "calibrated")
    start = options.model or (_LIBRARY_MODEL if by_torch else _MODEL)
    calls = CALLS if options.calls is None else options.calls
    asked = (options.minutes, not options.json, options.runtime, calls, options.force)
    found = calibrate(CalibrateSettings(device.name, out, start, *asked))
    for reason in found["busy"]:
        say(f"this machine is busy: {reason}. The factors are worse for it; calibrate again when it is quiet")
    if options.json:
        print_json(found)
        return
    print(f"{device.title}: {found['programs']} programs of {found['tasks']} kernels measured")
    machine = Disturbance(**found["machine"])
    print(f"machine: {machine.describe()}")
    if found["measured"]:
        print("timed:   " + ", ".join(f"{name} {value:g}" for name, value in found["measured"].items()))
    print("factors: " + ", ".join(f"{name} {value:.2f}" for name, value in found["factors"].items()))
    before, after = found["before"], found["left_out_tasks"]
    print(
        f"error on these kernels: {before['mape']:.0f} % before (median {before['median_ape']:.0f}), "
        f"{after['mape']:.0f} % (median {after['median_ape']:.0f}) for each kernel by what the others tell"
    )
    what = "op OPERATOR SIZES" if by_torch else "PROGRAM"
    print(f"model:   {out / 'model'}; `cdmpp predict {what} --device {device.name}` uses it from here")

"""``cdmpp calibrate``: a model for the CPU of this machine, in three minutes, from a dozen kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp import devices
from cdmpp.cli.output import print_json


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--device", required=True, help="what this machine is: a name that `cdmpp devices` lists")
    verb.add_argument("--model", default="cpus", help="model folder or name of a shipped one to scale (default cpus)")
    verb.add_argument(
        "--out", type=Path, help="folder for the records and the model (default outputs/DEVICE/calibrated)"
    )
    verb.add_argument("--minutes", type=float, default=2.5, help="no new kernel is begun after this long (default 2.5)")
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Measure, scale, say what it brought."""
    from cdmpp.recipes.calibrate import CalibrateSettings, calibrate

    device = devices.get(options.device)
    out = options.out or Path("outputs") / device.name / "calibrated"
    found = calibrate(CalibrateSettings(device.name, out, options.model, options.minutes, not options.json))
    if options.json:
        print_json(found)
        return
    print(f"{device.title}: {found['programs']} programs of {found['tasks']} kernels measured")
    print("timed:   " + ", ".join(f"{name} {value:g}" for name, value in found["measured"].items()))
    print("factors: " + ", ".join(f"{name} {value:.2f}" for name, value in found["factors"].items()))
    before, after = found["before"], found["left_out_tasks"]
    print(
        f"error on these kernels: {before['mape']:.0f} % before (median {before['median_ape']:.0f}), "
        f"{after['mape']:.0f} % (median {after['median_ape']:.0f}) for each kernel by what the others tell"
    )
    print(f"model:   {out / 'model'}; `cdmpp predict PROGRAM --device {device.name}` uses it from here")

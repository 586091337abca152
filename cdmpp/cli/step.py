"""``cdmpp step``: the time of a training step on one device or several, as a summary, JSON or a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cdmpp.cli.network import add_graph_arguments, check_files, network_options
from cdmpp.cli.output import console, print_json, say
from cdmpp.cli.plan_options import add_plan_arguments, check_plan, print_plan, write_plan
from cdmpp.cli.ranks import add_rank_arguments, check_ranks, planned_on, print_replay, replayed_on
from cdmpp.errors import CdmppError
from cdmpp.network.runtime import RUNTIMES

OPTIMIZERS = ("sgd", "adam", "adamw", "none")
LOSSES = ("cross_entropy", "mse", "model")
"""As in ``programs.training``, which would import torch for a help text."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("--device", required=True, help="name of a device, see `cdmpp devices`")
    add_graph_arguments(verb)
    runtime = "tvm, whose programs are scheduled, or torch, whose libraries serve it eagerly (default tvm)"
    verb.add_argument("--runtime", choices=RUNTIMES, help=runtime)
    rule = "best_of:K (the best of K sampled schedules by prediction), untuned, or database:DIR (default best_of:16)"
    verb.add_argument("--schedule", help=rule)
    verb.add_argument(
        "--optimizer", default="adamw", choices=OPTIMIZERS, help="default adamw; sgd has momentum, none makes no update"
    )
    loss = "of the first output, or model: what the model returns for labels among its inputs (default cross_entropy)"
    verb.add_argument("--loss", default="cross_entropy", choices=LOSSES, help=loss)
    no_fallback = (
        "refuse a network whose backward pass cannot be made a graph; else it counts as a ratio of the forward pass"
    )
    verb.add_argument("--no-fallback", action="store_true", help=no_fallback)
    add_rank_arguments(verb)
    add_plan_arguments(verb)
    verb.set_defaults(optimize=False)
    verb.add_argument("--json", action="store_true", help="machine-readable, with when each gradient is ready")
    verb.add_argument("--trace", type=Path, metavar="FILE", help="also write the timeline for ui.perfetto.dev")


def run(options: argparse.Namespace) -> None:
    """Print the summary or the JSON, write the trace, and say each warning on a line of its own."""
    check_plan(options)
    check_ranks(options)
    asked = network_options(options)
    if asked.pop("dtype", "float32") != "float32":
        raise CdmppError(f"--dtype {options.dtype}: training steps are made in float32 alone")
    check_files((options.trace, options.save_plan))
    if options.runtime != "torch":
        asked["fallback"] = not options.no_fallback
    elif options.no_fallback:
        raise CdmppError("--no-fallback is of --runtime tvm: PyTorch's own kernels have no such ratio")
    import cdmpp

    found = cdmpp.predict_step(
        options.network, device=options.device, optimizer=options.optimizer, loss=options.loss,
        progress=sys.stderr.isatty(), **asked,
    )  # fmt: skip
    replayed = None if options.ranks is None else replayed_on(found, options)
    searched = planned_on(found, options) if options.optimize else None
    warnings = found.prediction.warnings if replayed is None else replayed.warnings
    for warning in dict.fromkeys((*warnings, *(() if searched is None else searched.warnings))):
        say(warning)
    if options.json:
        parts = {"replay": replayed, "optimized": searched}
        print_json(found.to_dict() | {key: part.to_dict() for key, part in parts.items() if part is not None})
    else:
        console().print(found.summary(), markup=False, highlight=False, soft_wrap=True)
        if replayed is not None:
            print_replay(replayed)
        if searched is not None:
            print_plan(searched)
    if options.trace is not None:
        (found.prediction if replayed is None else replayed).save_trace(options.trace)
        say(f"wrote {options.trace}")
    if options.plan is not None:
        write_plan(options.plan if searched is None else searched.plan, options)

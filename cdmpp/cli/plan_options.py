"""The options of plans."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from cdmpp.cli.output import say
from cdmpp.cli.ranks import check_searched
from cdmpp.cli.table import is_table
from cdmpp.errors import UsageError
from cdmpp.plans.plan import ACCUMULATION
from cdmpp.platform.limits import numbers, path

if TYPE_CHECKING:
    from cdmpp.network.workload import Workload
    from cdmpp.plans.plan import Plan
    from cdmpp.steps.step_graph import RankGraph

_OF_STEP = (
    "device",
    "cluster",
    "link",
    "backend",
    "runtime",
    "model",
    "schedule",
    "seq",
    "optimizer",
    "clip_norm",
    "loss",
    "precision",
)
"""Options that say which step a plan is for."""


def add_plan_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options by which a plan comes from a file and goes to one."""
    plans = verb.add_argument_group("plans")
    given = "a plan that --save-plan wrote, in place of --strategy; `cdmpp plan` begins its search there"
    plans.add_argument("--plan", type=path, metavar="FILE", help=given)
    plans.add_argument("--save-plan", type=path, metavar="FILE", help="write the plan as YAML")
    script = "write what runs the plan: a script of PyTorch (.py), or a configuration of torchtitan (.toml)"
    plans.add_argument("--torch", type=path, metavar="FILE", help=script)


def add_search_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the limits of a search."""
    many = "batches whose gradients may be added up; more than 1 multiplies the global batch (default 1)"
    verb.add_argument("--accumulate-steps", type=ACCUMULATION, help=many)


def add_memory_argument(verb: argparse.ArgumentParser) -> None:
    """Declare the limit of a search that knows what the job needs."""
    limit = "GB (1e9 bytes) that a device may hold at most"
    verb.add_argument("--memory-gb", type=numbers(0, 10**6, "GB", above=True), help=limit)


def check_plan(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` for options of a step or plan that do not go together."""
    has_ranks = options.ranks is not None or options.plan is not None
    check_torch(options)
    if not options.optimize:
        if options.save_plan and not has_ranks:
            raise UsageError("--save-plan goes with --ranks: else there is no plan")
        if options.torch and not has_ranks:
            raise UsageError("--torch goes with --ranks: else there is no plan")
        return
    if not has_ranks:
        raise UsageError("--ranks is missing: say how many devices train")
    check_searched(options)


def write_plan(plan: Plan, options: argparse.Namespace, global_batch: int | None = None) -> None:
    """Write the plan where ``--save-plan`` asks for it, and say how a plan for a known ``global_batch`` is replayed."""
    if options.save_plan is not None:
        from cdmpp.plans.plan_file import save_plan

        save_plan(plan, options.save_plan)
        say(f"wrote {options.save_plan}")
        if global_batch is not None:
            left_out = {"calibrate": "calibration", "power_limit_w": "power limit"}
            without = [title for name, title in left_out.items() if getattr(options, name, None)]
            nominal = f", without the {' and the '.join(without)}" if without else ""
            say(f"this replays it{nominal}: {_step_command(options, plan, global_batch)}")


def check_torch(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` where ``--torch`` asks for what cannot be written."""
    if options.torch is None:
        return
    from cdmpp.plans.script.write import check_script

    check_script(options.torch)
    if is_table(options):
        raise UsageError(f"--torch is of networks: {options.network} says what layers take, not what they compute")
    if options.runtime != "torch":
        raise UsageError(f"--torch is of --runtime torch, given --runtime {options.runtime}")


def write_torch(
    workload: Workload, plan: Plan, global_batch: int, rank: RankGraph, options: argparse.Namespace
) -> None:
    """Write what runs the plan where ``--torch`` asks for it; ``rank`` is one rank's work under it."""
    if options.torch is not None:
        from cdmpp.plans.script.write import write_script

        write_script(options.torch, workload, plan, global_batch, rank)
        say(f"wrote {options.torch}")


def _step_command(options: argparse.Namespace, plan: Plan, global_batch: int) -> str:
    words = ["cdmpp", "step", options.network, *(f"--input={one}" for one in options.input)]
    for name in _OF_STEP:
        value = getattr(options, name)
        if name == "device" and value is None:
            value = plan.devices[0]
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--ema"] if options.ema else []
    words += ["--no-fallback"] if options.no_fallback else []
    return shlex.join([*words, "--plan", str(options.save_plan), "--global-batch", str(global_batch)])

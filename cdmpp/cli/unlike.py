"""Jobs on unlike devices: ``cdmpp plan NET --devices A:8,B:8`` ranks plans, and ``cdmpp step --plan`` replays one."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cdmpp.cli.table import is_table, table_sources
from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.devices import Device
    from cdmpp.plans.plan import Plan
    from cdmpp.plans.sources.source import StepSource
    from cdmpp.plans.sources.unlike import UnlikeSource

Source = Callable[[argparse.Namespace, "Device"], "StepSource"]
_OTHERS = ("device", "calibrate", "scaling", "machines", "strategy", "plan", "straggler", "accumulate_steps")
"""Options that are of equal devices."""


def device_counts(options: argparse.Namespace) -> Mapping[str, int]:
    """Return the ranks on each device of ``--devices``; they become ``--gpus``.

    ``UsageError``: files of workers, another number of ranks, or options of equal devices.
    """
    from cdmpp.plans.plan import from_runs

    if given := [name for name in _OTHERS if getattr(options, name, None)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --devices: leave it out")
    if options.runtime != "torch":
        raise UsageError(f"--devices is of --runtime torch, given {options.runtime}")
    named = from_runs("--devices", options.devices.split(","))
    if files := [name for name in named if name.endswith((".yaml", ".yml"))]:
        raise UsageError(
            f"--devices names {files[0]}: files of workers are for --strategies partition; name devices, or a table of "
            "layers with a column device"
        )
    if options.ranks not in (None, len(named)):
        raise UsageError(f"--gpus {options.ranks}, and --devices has {len(named)}: leave out --gpus, or give as many")
    options.ranks = len(named)
    return dict(Counter(named))


def unlike_source(
    options: argparse.Namespace, names: Mapping[str, int], source_of: Source | None = None
) -> UnlikeSource:
    """Return what ranks take on each named device: as a table of layers has it, or as ``source_of`` predicts it."""
    from cdmpp import devices
    from cdmpp.plans.sources.unlike import UnlikeSource

    if is_table(options):
        tables = table_sources(options)
        if lacking := [name for name in names if name not in tables]:
            known = ", ".join(filter(None, tables)) or "it has no column device"
            raise UsageError(f"{options.network} has no layers on {lacking[0]}: {known}")
        return UnlikeSource({name: tables[name] for name in names})
    assert source_of is not None
    return UnlikeSource({name: source_of(options, devices.get(name)) for name in names})


def check_plan_devices(plan: Plan, device: str) -> None:
    """Raise ``UsageError`` where ``--device`` is none of those on which the ranks of a plan stand."""
    names = dict.fromkeys(plan.devices)
    if names and device not in names:
        raise UsageError(
            f"--device {device}: ranks of the plan stand on {', '.join(names)}; name one of these, or take a "
            "plan without devices"
        )

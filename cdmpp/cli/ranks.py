"""The options of ``cdmpp step`` for several ranks."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from cdmpp.cli.options import add_place
from cdmpp.cli.unlike import check_plan_devices
from cdmpp.collectives.collective import RANKS
from cdmpp.errors import UsageError
from cdmpp.network.runtime import INDUCTOR
from cdmpp.plans.strategies import DEFAULT_STRATEGY, STRATEGIES
from cdmpp.platform.limits import Limits, text

if TYPE_CHECKING:
    from cdmpp.collectives.topology import Topology
    from cdmpp.network.training_prediction import StepPrediction
    from cdmpp.network.workload import Workload
    from cdmpp.plans.search_result import SearchResult
    from cdmpp.plans.sources.source import StepSource
    from cdmpp.steps.step_replay import StepReplay
    from cdmpp.steps.strategy import Flag, Strategy

_OPTIONS = (
    "cluster",
    "link",
    "strategy",
    "backend",
    "no_overlap",
    "offload",
    "ring_steps",
    "straggler",
    "global_batch",
)


def add_rank_arguments(verb: argparse.ArgumentParser, left_out: Collection[str] = ()) -> None:
    """Declare the ranks and how they train; each strategy declares those of its own settings.

    ``left_out`` are options of strategies that the verb declares itself.
    """
    ranks = verb.add_argument_group("several ranks")
    ranks.add_argument("--ranks", "--gpus", type=RANKS, help="how many devices train")
    all_examples = "examples of all devices in one step, in place of --batch: the batch of a replica follows"
    ranks.add_argument("--global-batch", type=Limits(1, 2**31, "examples"), help=all_examples)
    add_place(ranks)
    known = ", ".join(f"{kind.name} ({kind.title})" for kind in STRATEGIES)
    ranks.add_argument("--strategy", type=text, help=f"parallel strategy: {known} (default {DEFAULT_STRATEGY})")
    for _, _, flag in strategy_flags():
        if flag.option not in left_out:
            ranks.add_argument(flag.option, type=flag.type, help=flag.help)
    ranks.add_argument(
        "--backend", type=text, help="nccl, rccl, oneccl or gloo (default: what fits the device; to servers gloo)"
    )
    out = (
        "what lies in the memory of the host: parameters (with gradients and optimizer, as FSDP2's CPUOffloadPolicy), "
        "activations (of all blocks but the last), or both, joined by a comma"
    )
    ranks.add_argument("--offload", type=text, metavar="WHAT", help=out)
    ranks.add_argument("--no-overlap", action="store_true", help="exchange only when nothing computes")
    slow = "a rank whose device takes that many times as long as the others, such as 2=1.3; may be given again"
    ranks.add_argument("--straggler", type=text, action="append", default=[], metavar="RANK=FACTOR", help=slow)
    ranks.add_argument("--ring-steps", action="store_true", help="expand collectives into the steps of their rings")


def check_ranks(options: argparse.Namespace) -> None:
    """Raise ``CdmppError`` for what cannot be, before anything is predicted; ``options.plan`` becomes the plan."""
    settings = [flag_dest(flag) for _, _, flag in strategy_flags()]
    if options.ranks is None and options.plan is None:
        if given := [name for name in (*_OPTIONS, *settings) if getattr(options, name)]:
            raise UsageError(f"--{given[0].replace('_', '-')} goes with --ranks: say how many devices train")
        return
    from cdmpp.plans.distributed_step import check_slow
    from cdmpp.plans.placement import replica_batch_of
    from cdmpp.plans.plan import plan_on
    from cdmpp.plans.plan_file import read_plan
    from cdmpp.plans.plan_topology import plan_topology
    from cdmpp.steps.exchange_tasks import check_granularity

    from_file = options.plan is not None
    if options.plan is None:
        options.plan = plan_on(options.ranks, _strategy(options), offload=offload_option(options))
    elif given := [name for name in ("strategy", "no_overlap", "offload", *settings) if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --plan, whose file says it: leave it out")
    else:
        options.plan = read_plan(options.plan, options.ranks)
    options.ranks = options.plan.ranks
    check_plan_devices(options.plan, options.device)
    if options.optimize and (options.plan.devices or options.plan.shares):
        raise UsageError(
            "--plan names devices, or shares of the batch, and settings are searched for equal ones: `cdmpp plan "
            "--devices` searches those of unlike devices, and `cdmpp step --plan` replays one plan"
        )
    if options.plan.model_parallel:
        _check_divided(options)
    can_grow = from_file and not options.optimize
    topology = plan_topology(options.plan, options.device, options.cluster, options.link, options.backend, can_grow)
    _check_offload(options, topology)
    if options.global_batch is not None:
        if options.batch is not None:
            raise UsageError("--batch and --global-batch: give the examples of one replica, or those of all")
        if (getattr(options, "accumulate_steps", None) or 1) > 1:
            raise UsageError(
                f"--accumulate-steps {options.accumulate_steps} lets a search multiply the batch, and --global-batch "
                f"{options.global_batch} fixes it: leave out one of the two"
            )
        replica_batch_of(options.plan, options.global_batch)
    check_granularity(_granularity(options), options.ranks)
    slow = [_slow(text) for text in options.straggler]
    if twice := [rank for place, (rank, _) in enumerate(slow) if rank in dict(slow[:place])]:
        raise UsageError(f"--straggler {twice[0]}=FACTOR is given twice: once for each rank")
    options.straggler = check_slow(dict(slow), options.ranks)
    if options.straggler and options.optimize:
        raise UsageError("--straggler does not go with a search: plans are searched for ranks that are equal")


def _check_offload(options: argparse.Namespace, topology: Topology) -> None:
    """Raise ``CdmppError`` for a search of a plan that leaves something on the host, and for an unknown host."""
    from cdmpp.plans.host_memory import host_of

    if not options.plan.offload:
        return
    if options.optimize:
        raise UsageError(
            "--plan leaves something on the host, and settings are searched for plans that leave nothing there: "
            "`cdmpp step --plan` replays it"
        )
    host_of(options.plan, topology)


def _check_divided(options: argparse.Namespace) -> None:
    """Check the options of a plan that divides the model, and take PyTorch's operators where none are named."""
    from cdmpp.plans.combinations import combination_of

    names = " and ".join(one.name for one in options.plan.model_parallel)
    if options.optimize:
        raise UsageError(
            f"{names} divides the model, and --strategy and --plan search settings of undivided models only: `cdmpp "
            f"plan --strategies {combination_of(options.plan)}` ranks all plans of the kind and searches the settings "
            "of the best, and `cdmpp step --plan FILE` replays one plan"
        )
    options.runtime = options.runtime or "torch"
    if options.runtime not in ("torch", INDUCTOR):
        raise UsageError(f"{names} divides the operators of --runtime torch, given --runtime {options.runtime}")


def on_replica(workload: Workload, options: argparse.Namespace) -> Workload:
    """Return the workload with the examples of one replica, where those of all devices are given."""
    if options.global_batch is None:
        return workload
    from cdmpp.plans.placement import replica_batch_of
    from cdmpp.plans.sources.predicted import at

    return at(workload, replica_batch_of(options.plan, options.global_batch))


def divided_source(workload: Workload, options: argparse.Namespace) -> StepSource | None:
    """Return the work of a rank of a plan that divides the model, or names devices; None for another plan.

    It reads no network yet.
    """
    if options.plan is None or not (options.plan.model_parallel or options.plan.devices):
        return None
    from cdmpp.devices import get
    from cdmpp.plans.sources.network import network_source
    from cdmpp.plans.sources.unlike import UnlikeSource

    plan = options.plan
    each = {
        name: network_source(workload, get(name), options.model)
        for name in dict.fromkeys(plan.devices or (options.device,))
    }
    return UnlikeSource(each) if plan.devices else each[options.device]


def replayed_on(found: StepPrediction, source: StepSource | None, options: argparse.Namespace) -> StepReplay:
    """Replay the step on the ranks asked for; of a plan that divides the model with the work of ``divided_source``."""
    import cdmpp

    if source is not None:
        return replayed_from(source, found.step.batch, options)
    return cdmpp.replay_step(found, plan=options.plan, global_batch=options.global_batch, **_asked(options))


def replayed_from(source: StepSource, batch: int | None, options: argparse.Namespace) -> StepReplay:
    """Replay a step of ``batch`` examples of each replica, or of ``--global-batch``, on the ranks asked for."""
    from cdmpp.plans.distributed_step import replay_plan

    asked = _asked(options)
    if options.global_batch is not None:
        return replay_plan(source, options.plan, global_batch=options.global_batch, device=options.device, **asked)
    return replay_plan(source, options.plan, batch, device=options.device, **asked)


def planned_on(found: StepPrediction, options: argparse.Namespace) -> SearchResult:
    """Search the best plan for the step on the ranks that were asked for."""
    import cdmpp

    limit = None if options.memory_gb is None else round(1e9 * options.memory_gb)
    return cdmpp.optimize_step(
        found, plan=options.plan, cluster=options.cluster, link=options.link, backend=options.backend,
        memory_limit_bytes=limit, most_accumulation_steps=options.accumulate_steps or 1,
    )  # fmt: skip


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    place = {name: getattr(options, name) for name in ("cluster", "link", "backend")}
    return {**place, "granularity": _granularity(options), "slow": options.straggler}


def check_searched(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` for an option of one plan that is given to a search."""
    chosen = [flag_dest(flag) for _, _, flag in strategy_flags()]
    for name in (*chosen, "ring_steps", "no_overlap", "offload"):
        if getattr(options, name, None):
            why = (
                ", which chooses it: leave it out"
                if name in chosen
                else ": leave it out, or replay one plan by `cdmpp step`"
            )
            raise UsageError(f"--{name.replace('_', '-')} does not go with a search{why}")


def strategy_flags() -> Iterator[tuple[type[Strategy], str, Flag]]:
    """Yield the strategy, the field, and the option that sets it, for every setting that has one."""
    for kind in STRATEGIES:
        for one in fields(kind):
            if "flag" in one.metadata:
                yield kind, one.name, one.metadata["flag"]


def offload_option(options: argparse.Namespace) -> tuple[str, ...]:
    """Return what ``--offload`` names."""
    return tuple(one.strip() for one in (options.offload or "").split(",") if one.strip())


def flag_dest(flag: Flag) -> str:
    """Return the name under which the parsed options have the value of a setting."""
    return flag.option.removeprefix("--").replace("-", "_")


def _strategy(options: argparse.Namespace) -> Strategy:
    wanted, settings = STRATEGIES[options.strategy or DEFAULT_STRATEGY], dict[str, Any]()
    for kind, name, flag in strategy_flags():
        if (value := getattr(options, flag_dest(flag))) is None:
            continue
        if kind is not wanted:
            raise UsageError(f"{flag.option} goes with --strategy {kind.name}, given {wanted.name}: leave it out")
        settings[name] = value
    made = wanted(**settings)
    return replace(made, overlap=False) if options.no_overlap else made


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition("=")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise UsageError(f"--straggler {text}: expected RANK=FACTOR, such as 2=1.3") from None


def _granularity(options: argparse.Namespace) -> str:
    return "ring step" if options.ring_steps else "collective"

"""Memory of one plan: ``cdmpp plan NET ... --memory-only`` says what each rank holds, part by part."""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdmpp.cli.output import say, show
from cdmpp.cli.ranks import flag_dest, offload_option, strategy_flags
from cdmpp.cli.step import checked_runtime, step_workload
from cdmpp.cli.table import batch_of, is_table, table_source
from cdmpp.cli.unlike import check_plan_devices
from cdmpp.errors import UsageError
from cdmpp.platform.limits import text

if TYPE_CHECKING:
    from cdmpp.devices import Device
    from cdmpp.plans.frameworks import Framework
    from cdmpp.plans.plan import Plan
    from cdmpp.plans.sources.source import StepSource
    from cdmpp.plans.transformer_shape import TransformerShape

_OTHERS = (
    "strategies", "price", "explain", "scaling", "calibrate", "input_samples_per_s", "machines", "straggler",
    "ring_steps", "timeline", "save_plan", "torch",
)  # fmt: skip
"""Options of searches and replays."""


def add_memory_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the question, and along which degrees the ranks divide the work."""
    group = verb.add_argument_group("memory of one plan (--memory-only)")
    only = "only say what each rank holds, part by part, and whether it fits: of --plan, or of --strategy and --degrees"
    group.add_argument("--memory-only", action="store_true", help=only)
    degrees = (
        "ranks along degrees of the strategies, such as pp=4,dp_shard=16; that of the replicas may be left out: it is "
        "what the others leave of --gpus"
    )
    group.add_argument("--degrees", type=text, metavar="NAME=N,...", help=degrees)
    framework = (
        "an hf: decoder as megatron or nanotron runs it, from its sizes alone, also without --memory-only; with "
        "settings of cdmpp.plans.frameworks, such as megatron,recompute=full (default: as PyTorch runs it eagerly)"
    )
    allocator = (
        "follow PyTorch's allocator too, for what it reserves under fsdp: native, as by default, or expandable, with "
        "expandable_segments:True as torchtitan sets it"
    )
    group.add_argument("--allocator", choices=("native", "expandable"), help=allocator)
    group.add_argument("--framework", type=text, metavar="NAME[,SETTING=VALUE]", help=framework)


def is_memory_only(options: argparse.Namespace) -> bool:
    """Return True if only memory is asked for; ``UsageError`` for options of that question without it."""
    if options.degrees and not options.memory_only:
        raise UsageError("--degrees goes with --memory-only: searches choose degrees")
    if options.allocator and not options.memory_only:
        raise UsageError("--allocator goes with --memory-only: leave it out")
    return bool(options.memory_only)


def memory(options: argparse.Namespace) -> None:
    """Show what each rank holds."""
    from cdmpp import devices
    from cdmpp.plans.framework_answer import framework_answer
    from cdmpp.plans.memory_answer import memory_answer
    from cdmpp.plans.placement import global_batch_of
    from cdmpp.plans.plan_topology import plan_topology
    from cdmpp.report.memory import memory_report

    if given := [name for name in _OTHERS if getattr(options, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --memory-only, which replays nothing")
    if options.runtime != "torch":
        raise UsageError(f"--memory-only is of --runtime torch, given --runtime {options.runtime}")
    checked_runtime(options)
    if options.batch is not None and options.global_batch is not None:
        raise UsageError("--batch and --global-batch: give the examples of one replica, or those of all")
    plan, device = _plan(options), devices.get(options.device)
    if len(names := dict.fromkeys(plan.devices)) > 1:
        raise UsageError(
            f"--memory-only is of equal devices, and ranks of the plan stand on {', '.join(names)}: `cdmpp "
            "plan --devices` lists what each of them holds"
        )
    check_plan_devices(plan, options.device)
    plan = replace(plan, devices=())  # all have that of the job
    topology = plan_topology(plan, device, options.cluster, options.link, options.backend, can_grow=True)
    source: Any = None if options.framework else _source(options, device)
    told, global_batch = tuple[str, ...](), options.global_batch
    if global_batch is None:
        batch = batch_of(source, options) if is_table(options) and source is not None else options.batch
        global_batch = global_batch_of(plan, batch or _least(plan))
        if batch is None:
            told = ("no batch is given: micro-batches of one example; --batch says the examples of a replica",)
    limit = device.spec["memory_gb"] if options.memory_gb is None else options.memory_gb
    limit_bytes, is_gpu, network = None if limit is None else 1e9 * limit, device.kind != "cpu", str(options.network)
    gc.disable()  # graphs are all kept
    if source is None:
        if options.allocator:
            raise UsageError("--allocator does not go with --framework, which follows the native one: leave it out")
        found = framework_answer(*decoder(options), plan, global_batch, is_gpu, limit_bytes, network, told)
    else:
        if options.allocator and not is_gpu:
            raise UsageError(f"--allocator is of a GPU, given {device.name}: leave it out")
        allocator = options.allocator or ""
        found = memory_answer(source, plan, topology, global_batch, is_gpu, limit_bytes, network, told, allocator)
    gc.enable()
    show({"": memory_report(found)}, options, rows="")


def _source(options: argparse.Namespace, device: Device) -> Any:
    if is_table(options):
        return table_source(options)
    from cdmpp.network.eager.device_precision import workload_on
    from cdmpp.plans.sources.stored import StoredSource

    workload = step_workload(options)
    workload_on(workload, device)  # refuses what the device cannot run

    def make() -> StepSource:
        from cdmpp.network.eager.runtime import EagerRuntime
        from cdmpp.plans.sources.predicted import PredictedSource

        return PredictedSource(workload, device, EagerRuntime(options.model))

    def before_reading(is_kept: bool) -> None:
        often = ", once; later questions about it take a second or two" if is_kept else ", as for each question"
        say(f"reading {options.network}{often}")

    return StoredSource(workload, device, options.model, make, before_reading)


def decoder(options: argparse.Namespace) -> tuple[TransformerShape, Framework]:
    """Return sizes and framework; ``UsageError`` for options of a step that a framework's settings say."""
    from cdmpp.plans.frameworks import framework_of
    from cdmpp.plans.transformer_config import shape_of

    given = {"precision": "bf16", "optimizer": "adamw", "recompute": "none", "loss": "model", "attention": "auto"}
    for name, known in given.items():
        if (value := getattr(options, name)) not in (None, known, "cross_entropy"):
            raise UsageError(f"--{name} {value} does not go with --framework, whose settings say it")
    if options.input or options.decoder_seq is not None:
        raise UsageError("--input and --decoder-seq do not go with --framework: give --seq")
    shape, (name, _, settings) = shape_of(str(options.network), options.seq), options.framework.partition(",")
    own = [name] if shape.has_bias else [name, "dropout=false"]  # decoders after GPT-2 have none
    return shape, framework_of(",".join([*own, *filter(None, [settings])]))


def _least(plan: Plan) -> int:
    """Return the examples of a replica with one in each micro-batch."""
    from cdmpp.plans.placement import micro_batches_of

    return micro_batches_of(plan)


def _plan(options: argparse.Namespace) -> Plan:
    """Return the plan of the file, or of the strategies and degrees that are named."""
    from cdmpp.plans.plan_file import read_plan

    flags = {flag_dest(flag): flag.option for _, _, flag in strategy_flags() if flag.option != "--servers"}
    if options.plan is not None:
        others = ("strategy", "degrees", "accumulate_steps", "no_overlap", "offload")
        own = flags | {name: f"--{name.replace('_', '-')}" for name in others}
        if given := [option for name, option in own.items() if getattr(options, name)]:
            raise UsageError(f"{given[0]} does not go with --plan, whose file says it: leave it out")
        return read_plan(options.plan, options.ranks)
    if options.ranks is None:
        raise UsageError("--ranks is missing: say how many devices train, as in --gpus 8")
    return _named(options)


def _named(options: argparse.Namespace) -> Plan:
    from cdmpp.plans.combinations import combination
    from cdmpp.plans.degrees import ParallelDegrees
    from cdmpp.plans.plan import Plan
    from cdmpp.plans.strategies import DEFAULT_STRATEGY
    from cdmpp.steps.strategy import Strategy

    asked = combination(options.strategy or DEFAULT_STRATEGY)
    made: list[Strategy] = [asked.strategy, *asked.model_parallel]
    for kind, name, flag in strategy_flags():
        if flag.option == "--servers" or (value := getattr(options, flag_dest(flag))) is None:
            continue
        places = [place for place, one in enumerate(made) if isinstance(one, kind)]
        if not places:
            raise UsageError(f"{flag.option} goes with --strategy {kind.name}, given {asked.name}: leave it out")
        made[places[0]] = replace(made[places[0]], **{name: value})
    if options.no_overlap:
        made[0] = replace(made[0], overlap=False)
    degrees, steps = _degrees(options, asked.degrees), options.accumulate_steps or 1
    return Plan(
        made[0], ParallelDegrees(**degrees), steps, model_parallel=tuple(made[1:]), offload=offload_option(options)
    )


def _degrees(options: argparse.Namespace, owned: tuple[str, ...]) -> dict[str, int]:
    """Return the ranks along each degree of the strategies; one that is not named has what the others leave."""
    from cdmpp.plans.degrees import TITLES, ParallelDegrees

    found, asked = dict[str, int](), options.degrees or ""
    for part in filter(None, asked.replace(" ", "").split(",")):
        name, _, ranks = part.partition("=")
        if name not in TITLES or not ranks.isdecimal() or name in found:
            raise UsageError(f"--degrees {asked}: {part} is none; expected NAME=N, each of {', '.join(TITLES)} once")
        found[name] = int(ranks)
    given, unnamed = ParallelDegrees(**found).ranks, [name for name in owned if name not in found]
    if len(unnamed) > 1:
        raise UsageError(f"--degrees is missing {unnamed[0]}: say how many ranks, as in --degrees {unnamed[0]}=4")
    if options.ranks % given or (not unnamed and given != options.ranks):
        way = "give degrees whose product divides it" if options.ranks % given else (
            "name a strategy for the rest, such as fsdp+pipeline, or other degrees"
        )  # fmt: skip
        raise UsageError(f"--degrees {asked} has a product of {given}, and --gpus is {options.ranks}: {way}")
    return found | {name: options.ranks // given for name in unnamed}

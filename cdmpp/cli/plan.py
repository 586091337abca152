"""``cdmpp plan``: every way to train a network on several devices, judged and ranked; and the settings of one way."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli import step
from cdmpp.cli.framework import framework_question
from cdmpp.cli.memory import add_memory_arguments, is_memory_only, memory
from cdmpp.cli.network import precision_option
from cdmpp.cli.options import add_executor
from cdmpp.cli.output import show
from cdmpp.cli.partition import add_partition_arguments, is_partition, partition
from cdmpp.cli.parts import parts_of
from cdmpp.cli.plan_options import add_memory_argument, add_search_arguments, check_torch, write_plan, write_torch
from cdmpp.cli.provision import add_provision_arguments, is_asked, provision
from cdmpp.cli.ranks import check_searched
from cdmpp.cli.table import is_table, table_source
from cdmpp.cli.unlike import device_counts, unlike_source
from cdmpp.errors import UsageError
from cdmpp.execute.executor import is_here
from cdmpp.network.runtime import INDUCTOR, NETWORK_RUNTIMES
from cdmpp.platform.limits import Limits, numbers, text

if TYPE_CHECKING:
    from cdmpp.devices import Device
    from cdmpp.plans.oracle import RankedPlan, Replays
    from cdmpp.plans.question import Question
    from cdmpp.plans.sources.source import StepSource

BATCH_PER_DEVICE = 32
"""Examples of each device where nobody says how many."""
WORTH_SENDING = 2.0
"""Replays that are left go to a cluster where they take so many times what a worker needs to be ready: two that share
them then gain what they spend."""
_ONE_WAY = ("strategy", "plan", "straggler", "accumulate_steps")
"""Options of the search of one way to train."""
_OTHER_QUESTIONS = ("framework", "machines", "devices", "memory_only", "cuda_graphs")
"""Options of other questions than that of all ways on equal devices."""
_ALL_WAYS = ("strategies", "price", "explain", "scaling", "calibrate", "input_samples_per_s")
"""Options of the oracle."""
_REFUSED = ("--straggler", "--ring-steps", "--cuda-graphs")
"""Options of a step that no question of this verb takes: each is refused with the reason, and help leaves them out."""
_SOME_TAKE = {
    "--bucket-mb": "--memory-only",
    "--stages-per-rank": "--memory-only",
    "--offload": "--memory-only",
    "--pipeline-schedule": "--memory-only or --strategies partition",
    "--micro-batches": "--memory-only or --strategies partition",
    "--no-overlap": "--memory-only, --strategies partition or --machines",
    "--timeline": "--strategy or --plan",
}
"""Option of a step -> the questions that take it; searches choose or compare it by themselves."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of a step; what they leave open is searched."""
    step.add_step_arguments(verb, NETWORK_RUNTIMES, left_out=("--servers", "--device", "--sweep"))
    add_search_arguments(verb)
    add_memory_argument(verb)
    ways = verb.add_argument_group("ways to train")
    many = (
        "alternatives such as data,spatial,data+filter,fsdp+pipeline; 'fsdp*tp*pp' are all hybrids of these, and so "
        "are words of degrees by themselves: ep,tp,pp,fsdp (default: all that suit the network)"
    )
    ways.add_argument("--strategies", type=text, metavar="A,B+C", help=many)
    ways.add_argument("--price", type=numbers(0, 10**6, above=True), help="money for a device and an hour")
    ways.add_argument("--top", type=Limits(1, 1000, "plans"), default=10, help="plans that are shown (default 10)")
    replayed = "best plans that are replayed, not only judged by closed form (default 20)"
    ways.add_argument("--replays", type=Limits(0, 1000, "plans"), default=20, help=replayed)
    why = (
        "why a plan is slower than the best one: its place in the table, or its strategies; settings are searched for "
        "that plan, and --save-plan writes it in place of the best one"
    )
    ways.add_argument("--explain", type=text, metavar="PLAN", help=why)
    ways.add_argument("--scaling", action="store_true", help="the best plan of each kind on 1 to 4,096 devices too")
    runs = "measured runs of the same job: a CSV file with plan (a file), global_batch and seconds of a step"
    ways.add_argument("--calibrate", type=text, metavar="RUNS.CSV", help=runs)
    verb.epilog = (
        "All ways to train are ranked. --strategy or --plan names one way, whose settings are searched. `cdmpp step` "
        "replays one plan with all settings. NETWORK may also be a table of measured layers."
    )
    inputs = "most examples a second that the input pipeline yields, for all devices"
    ways.add_argument("--input-samples-per-s", type=numbers(0, 10**12, above=True), metavar="N", help=inputs)
    power = "watts to which the boards are limited (nvidia-smi -pl); kernels run at the clock that these sustain"
    ways.add_argument("--power-limit-w", type=numbers(0, 10**5, "W", above=True), metavar="W", help=power)
    add_memory_arguments(verb)
    add_provision_arguments(verb)
    add_partition_arguments(verb)
    add_executor(verb)
    verb.set_defaults(optimize=True, runtime="torch", sweep=[], plot=None)
    _say_what_is_taken(verb)


def _say_what_is_taken(verb: argparse.ArgumentParser) -> None:
    """Leave out of help what is always refused, and say which questions take what others do not."""
    for option in _REFUSED:
        verb._option_string_actions[option].help = argparse.SUPPRESS
    for option, questions in _SOME_TAKE.items():
        action = verb._option_string_actions[option]
        action.help = f"{action.help}; only with {questions}"


def run(options: argparse.Namespace) -> None:
    """Rank all ways to train; or, where one is given, search its settings; or choose machines, or cut for devices."""
    if options.framework is not None and (is_partition(options) or is_asked(options) or options.devices is not None):
        raise UsageError(
            "--framework is of equal devices and a number of them: leave out other questions, and --devices"
        )
    _check_ranked(options)
    ranks_all = options.runtime in ("torch", INDUCTOR) and not any(getattr(options, name) for name in _ONE_WAY)
    others = is_partition(options) or is_memory_only(options) or is_asked(options)
    if not is_here() and (others or not ranks_all):
        raise UsageError(
            f"--executor {options.executor} replays the plans of a ranking of all ways to train: leave it out for "
            "other questions"
        )
    if is_partition(options):
        partition(options, _source)
        return
    if options.devices is not None:
        _ask(options)
        return
    if options.device is None:
        raise UsageError("--device is missing: name one, see `cdmpp devices`, or several by --devices")
    if is_memory_only(options):
        memory(options)
        return
    if is_asked(options):
        provision(options, _source)
        return
    given = [name for name in _ALL_WAYS if getattr(options, name)]
    if ranks_all:
        _ask(options)
        return
    if options.framework is not None:
        raise UsageError(
            "--framework does not go with --strategy or --plan but with --memory-only: all plans are ranked"
        )
    if given:
        one = next((name for name in _ONE_WAY if getattr(options, name)), "runtime tvm")
        names = (f"--{name.replace('_', '-')}" for name in (given[0], one))
        raise UsageError(f"{' does not go with '.join(names)}: one way to train is searched, or all are ranked")
    step.run(options)


def _check_ranked(options: argparse.Namespace) -> None:
    """Raise ``UsageError`` for what does not go with options of all ways to train on equal devices."""
    if options.power_limit_w is not None:
        if options.runtime == "tvm":
            raise UsageError("--power-limit-w is of PyTorch's kernels: leave out --runtime tvm")
        given = "--power-limit-w"
    elif options.runtime == INDUCTOR:
        given = f"--runtime {INDUCTOR}"
    else:
        return
    if is_table(options):
        raise UsageError(f"{given} with {options.network}: layers were measured as they ran, leave it out")
    others = [name for name in (*_ONE_WAY, *_OTHER_QUESTIONS) if getattr(options, name)]
    if others or is_partition(options):
        other = others[0].replace("_", "-") if others else "strategies partition"
        raise UsageError(
            f"--{other} does not go with {given}, under which all ways to train on equal devices are ranked: leave one "
            "of them out"
        )


def _ask(options: argparse.Namespace) -> None:
    begun_s = time.process_time()
    question = _question(options)
    from cdmpp.plans.oracle import ask
    from cdmpp.plans.placement import micro_batch_of
    from cdmpp.plans.refine import refine
    from cdmpp.plans.scaling import COUNTS
    from cdmpp.report.oracle import oracle_report
    from cdmpp.report.plan import plan_report

    counts = sorted({*COUNTS, question.ranks}) if options.scaling else ()
    elsewhere = _elsewhere(options, question, begun_s)
    gc.disable()  # a tenth of the time would go into looking at graphs, which are all kept
    try:
        found = ask(question, options.top, options.replays, counts, sys.stderr.isatty(), elsewhere)
    finally:
        gc.freeze()  # nor does it go there from now on
        gc.enable()
    reports, chosen = {"": oracle_report(found, options.price, options.explain)}, found.best
    if options.explain is not None:
        chosen = found.named(options.explain)
    if options.framework is not None:  # its settings are those of its rules
        show(reports, options, rows="")
        write_plan(chosen.plan, options, question.global_batch)
        return
    searched = refine(question, chosen.plan, options.optimizer, precision_option(options))
    reports["optimized"] = plan_report(searched, chosen.words)
    show(reports, options, rows="")
    write_plan(searched.plan, options, question.global_batch)
    if options.torch is not None:
        plan, batch = searched.plan, question.global_batch
        work = question.source.work(micro_batch_of(plan, batch), plan.degrees, plan.model_parallel)
        write_torch(step.step_workload(options), plan, batch, work.rank, options)


def _elsewhere(options: argparse.Namespace, question: Question, begun_s: float) -> Replays | None:
    """Return who replays plans where this process does not do all; ``begun_s``: its time when it began to read."""
    if is_here():
        return None
    from cdmpp.plans.oracle import RankedPlan, replayed_plan
    from cdmpp.serve.wire import to_wire

    def replays(plans: Sequence[RankedPlan]) -> list[RankedPlan]:
        """Replay here, until what is left is worth that others read the network too."""
        found, ready_s = list[RankedPlan](), time.process_time()
        for one in plans:
            each_s = (time.process_time() - ready_s) / max(1, len(found))
            if each_s * (len(plans) - len(found)) > WORTH_SENDING * (ready_s - begun_s):
                break
            found.append(replayed_plan(question, one))
        left = [to_wire(one) for one in plans[len(found) :]]
        return [*found, *(parts_of(options, left, "replays of plans", sys.stderr.isatty()) if left else ())]

    return replays


def part(options: argparse.Namespace, judged: Mapping[str, Any]) -> RankedPlan:
    """Replay a plan that was judged by closed form."""
    from cdmpp.plans.oracle import replayed_plan
    from cdmpp.serve.wire import from_wire

    return replayed_plan(_asked(tuple(options.words), options), from_wire(judged))


_questions = dict[tuple[str, ...], "Question"]()


def _asked(words: tuple[str, ...], options: argparse.Namespace) -> Question:
    """The question of a command, read once."""
    if words not in _questions:
        _questions.clear()
        _questions[words] = _question(options)
    return _questions[words]


def _question(options: argparse.Namespace) -> Question:
    """Check what can be checked before anything is read."""
    from cdmpp import devices
    from cdmpp.collectives.topology import topology_of
    from cdmpp.plans.combinations import asked, combinations
    from cdmpp.plans.questions import equal_question, unlike_question

    counts = None if options.devices is None else device_counts(options)
    if options.ranks is None:
        raise UsageError("--ranks is missing: say how many devices train, as in --gpus 8")
    check_searched(options)
    check_torch(options)
    if options.timeline is not None:
        raise UsageError("--timeline is of one plan: write it by --save-plan, then `cdmpp step --plan` has a timeline")
    step.checked_runtime(options)
    names = asked(options.strategies or "")
    combinations(names)
    _check_explained(options, names)
    assumed = f"no batch is given: {BATCH_PER_DEVICE} examples a device, {BATCH_PER_DEVICE * options.ranks:,} in all"
    told = () if options.batch or options.global_batch else (assumed,)
    links = {name: getattr(options, name) for name in ("cluster", "link", "backend")}
    settings = {
        "strategies": names, "memory_gb": options.memory_gb, "input_samples_per_s": options.input_samples_per_s,
    }  # fmt: skip
    if counts is not None:
        sources = unlike_source(options, counts, _source).sources
        settings |= {"warnings": told, "even_shares": options.even_shares}
        return unlike_question(sources, counts, _global_batch(options), links, **settings)
    if options.framework is not None:
        return framework_question(options, names, _global_batch(options), told)
    device = devices.get(options.device)
    topology_of(options.ranks, device, **links, can_grow=True)  # before anything is read
    source = _source(options, device)
    settings |= {"warnings": told, "progress": sys.stderr.isatty()}
    question = equal_question(source, device, options.ranks, _global_batch(options), links, **settings)
    return question if options.calibrate is None else _calibrated(options, question)


def _check_explained(options: argparse.Namespace, names: tuple[str, ...]) -> None:
    asked, most = options.explain, max(options.top, options.replays)
    if asked is None:
        return
    if asked.lstrip("-").isdecimal():
        if not 1 <= int(asked) <= most:
            raise UsageError(f"--explain {asked}: expected a place from 1 to {most} (--top), or strategies")
    elif names and asked not in names:
        raise UsageError(f"--explain {asked} is not among --strategies {','.join(names)}")
    else:
        from cdmpp.plans.combinations import combination

        combination(asked)


def _calibrated(options: argparse.Namespace, question: Question) -> Question:
    """Scale what a rank computes and the links as measured runs found them; a sentence of the question says so."""
    from cdmpp.plans.calibration import calibrate_by_replay, read_runs

    runs, topology = read_runs(Path(options.calibrate)), question.topology
    found = calibrate_by_replay(runs, question.source, topology)
    told = f"calibrated on {len(runs)} runs: computing x {found.compute:.3g}, {found.bandwidth:.3g} of the bandwidth"
    if not found.holds_between_nodes and topology(options.ranks).nodes > 1:
        told += " inside a node; no run was on several nodes: links between them are taken as described"
    return replace(
        question, source=found.source(question.source), topology=lambda ranks: found.topology(topology(ranks)),
        warnings=(*question.warnings, told),
    )  # fmt: skip


def _source(options: argparse.Namespace, device: Device) -> StepSource:
    if is_table(options):
        return table_source(options)
    from cdmpp.plans.sources.network import network_source

    workload, compiles = step.step_workload(options), options.runtime == INDUCTOR
    return network_source(workload, device, options.model, compiles, options.power_limit_w)


def _global_batch(options: argparse.Namespace) -> int:
    if options.global_batch is not None:
        if options.batch is not None:
            raise UsageError("--batch and --global-batch: give the examples of one device, or those of all")
        return int(options.global_batch)
    return int((options.batch or BATCH_PER_DEVICE) * options.ranks)

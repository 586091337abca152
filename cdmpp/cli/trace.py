"""``cdmpp trace``: read the traces of a training job on several ranks, replay it, ask what if, diagnose."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cdmpp.cli.network import check_files
from cdmpp.cli.output import format_seconds, print_json, print_table, say
from cdmpp.cli.plan_options import add_search_arguments, print_plan, write_plan
from cdmpp.errors import CdmppError, UsageError
from cdmpp.platform.limits import path, text

if TYPE_CHECKING:
    from cdmpp.plans.search_result import SearchResult
    from cdmpp.steps.replay import Replay
    from cdmpp.steps.step_graph import StepGraph
    from cdmpp.trace.diagnosis import Cause
    from cdmpp.trace.folder import Recording


_OF_SEARCHES = ("accumulate_steps", "save_plan")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument("folder", type=path, help="with the trace of each rank, as torch.profiler or cdmpp.trace.record")
    changes = (
        "replay with other settings: bandwidth=0.5 and latency=2 (factors of the links; "
        "link_gbps=1 beside bandwidth tells what the traced ones carry), bucket_mb=1, ranks=4, "
        "straggler=no, kernel:NAME=0.9 (a factor of the operators with NAME in their name)"
    )
    verb.add_argument("--what-if", type=text, nargs="+", default=[], metavar="KEY=VALUE", help=changes)
    verb.add_argument("--diagnose", action="store_true", help="why a step is long: causes in seconds a step, ranked")
    verb.add_argument("--optimize", action="store_true", help="search settings under which the step is shorter")
    add_search_arguments(verb)
    verb.add_argument("--save-plan", type=path, metavar="FILE", help="write the plan of --optimize as YAML")
    verb.add_argument("--timeline", type=path, metavar="FILE", help="write the replayed step for ui.perfetto.dev")
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Print what was measured, its replay, and what was asked beside."""
    settings = read_settings(options.what_if)
    if not options.optimize and (given := [name for name in _OF_SEARCHES if getattr(options, name) is not None]):
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --optimize")
    check_files((options.timeline, options.save_plan))
    from cdmpp.steps.replay import replay
    from cdmpp.trace.diagnosis import diagnose
    from cdmpp.trace.folder import read_job, read_recordings
    from cdmpp.trace.what_if import changed

    graph = read_job(options.folder)
    recordings = read_recordings(options.folder)
    base = replay(graph)
    asked = replay(changed(graph, settings)) if settings else None
    causes = diagnose(graph) if options.diagnose else ()
    searched = _searched(graph, options.accumulate_steps) if options.optimize else None
    if options.json:
        told = _to_dict(graph, base, asked, causes)
        print_json(told if searched is None else {**told, "optimized": searched.to_dict()})
    else:
        _print_ranks(graph, base)
        _print_overhead(recordings, graph, base)
        if asked is not None:
            _print_what_if(settings, base, asked)
        if options.diagnose:
            _print_causes(causes, base)
        if searched is not None:
            print_plan(searched)
    for warning in () if searched is None else searched.warnings:
        say(warning)
    if searched is not None:
        write_plan(searched.plan, options)
    if options.timeline is not None:
        from cdmpp.steps.rank_trace import save_trace
        from cdmpp.steps.strategy_replay import rank_spans

        save_trace(rank_spans(asked or base), options.timeline)
        say(f"wrote {options.timeline}")


def read_settings(given: list[str]) -> dict[str, str]:
    """``["bandwidth=0.5"]`` -> ``{"bandwidth": "0.5"}``; ``CdmppError`` for another form."""
    found: dict[str, str] = {}
    for word in given:
        key, equals, value = word.rpartition("=")
        if not equals or not key or not value:
            raise CdmppError(f"--what-if {word}: expected KEY=VALUE, such as bandwidth=0.5")
        if key in found:
            raise CdmppError(f"--what-if {key} is given twice: {key}={found[key]} and {word}")
        found[key] = value
    return found


def _searched(graph: StepGraph, most_accumulation_steps: int | None) -> SearchResult:
    from cdmpp.plans.job_evaluator import optimize_job

    return optimize_job(graph, most_accumulation_steps or 1)


def _print_ranks(graph: StepGraph, base: Replay) -> None:
    steps = len(graph.measured.steps_s)
    off = base.step_s / graph.measured.step_s - 1
    backend = graph.backend or "unknown back end"
    title = f"{len(graph.ranks)} ranks, {backend}, {steps} traced step{'s' if steps > 1 else ''}"
    measured = (
        f"measured {format_seconds(graph.measured.step_s)} a step, replayed {format_seconds(base.step_s)} ({off:+.1%})"
    )
    rows = [
        (
            str(rank.rank),
            str(len(rank.ops)),
            format_seconds(rank.busy_s),
            format_seconds(rank.idle_s),
            format_seconds(base.waits_s[rank.rank]),
            format_seconds((graph.measured.waits_s or {}).get(rank.rank, 0.0)),
        )
        for rank in graph.ranks
    ]
    headings = ("rank", "operators", "computes", "gaps", "stands for exchanges", "of others' delay")
    print_table(title, headings, rows, headings, caption=measured)
    wire_s = sum(one.measured_s for one in graph.exchanges)
    moved = sum(one.bytes for one in graph.exchanges)
    print(f"exchanges  {len(graph.exchanges)} a step, {moved / 1e6:.4g} MB, {format_seconds(wire_s)} on the wire")


def _print_overhead(recordings: tuple[Recording, ...], graph: StepGraph, base: Replay) -> None:
    """What profiling cost inside its window, and whether it cost anything outside."""
    if graph.measured.unprofiled_s is None:
        say("no steps without the profiler were measured here: cdmpp.trace.record does")
        return
    inside, off = graph.measured.step_s / graph.measured.unprofiled_s - 1, base.step_s / graph.measured.unprofiled_s - 1
    print(
        f"unprofiled {format_seconds(graph.measured.unprofiled_s)} a step, from which the replay is {off:+.1%}; "
        f"the profiler adds {inside:.1%} in its window"
    )
    pairs = [(one.before_s, one.after_s) for one in recordings]
    if before := [before for before, after in pairs if before is not None and after is not None]:
        after = [after for before, after in pairs if before is not None and after is not None]
        ratio = sum(after) / sum(before) - 1
        print(
            f"outside    {format_seconds(before[0])} before the window, {format_seconds(after[0])} after ({ratio:+.1%})"
        )


def _print_what_if(settings: dict[str, str], base: Replay, asked: Replay) -> None:
    told = " ".join(f"{key}={value}" for key, value in settings.items())
    change = asked.step_s / base.step_s - 1
    print(f"what if    {told}: {format_seconds(asked.step_s)} a step, {change:+.1%} against the replay")


def _print_causes(causes: tuple[Cause, ...], base: Replay) -> None:
    rows = [
        (cause.name, format_seconds(cause.seconds), f"{cause.seconds / base.step_s:.0%}", "\n".join(cause.spans))
        for cause in causes
    ]
    note = "a step without the cause would be shorter by that much; causes overlap"
    print_table("Why a step is long", ("cause", "a step", "share", "seen in"), rows, ("a step", "share"), caption=note)
    for cause in causes:
        print(f"{cause.name}: {cause.advice}")


def _to_dict(graph: StepGraph, base: Replay, asked: Replay | None, causes: tuple[Cause, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "measured_s": graph.measured.step_s,
        "unprofiled_s": graph.measured.unprofiled_s,
        "steps_s": list(graph.measured.steps_s),
        "replayed_s": base.step_s,
        "what_if_s": None if asked is None else asked.step_s,
        "ranks": [
            {
                "rank": rank.rank,
                "computes_s": rank.busy_s,
                "gaps_s": rank.idle_s,
                "stands_s": base.waits_s[rank.rank],
                "others_delay_s": (graph.measured.waits_s or {}).get(rank.rank),
            }
            for rank in graph.ranks
        ],
        "exchanges": [
            {"kind": one.kind, "bytes": one.bytes, "group": one.group, "wire_s": one.wire_s, "spread_s": one.spread_s}
            for one in graph.exchanges
        ],
        "causes": [asdict(cause) for cause in causes],
    }

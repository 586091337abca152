"""``cdmpp trace``: read the traces of a training job on several ranks, replay it, ask what if, diagnose."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.cli.chakra import add_chakra, check_chakra, replay_chakra, save_chakra
from cdmpp.cli.options import add_place
from cdmpp.cli.output import add_output_arguments, check_output, show
from cdmpp.cli.plan_options import add_search_arguments, write_plan
from cdmpp.errors import CdmppError, UsageError
from cdmpp.platform.limits import path, text

if TYPE_CHECKING:
    from cdmpp.plans.search_result import SearchResult
    from cdmpp.steps.step_graph import StepGraph


_OF_SEARCHES = ("accumulate_steps", "save_plan")
_ANSWERS = ("what_if", "diagnose", "optimize", "timeline", "chakra")
_OF_PROFILES = ("what_if", "check", "step_mark", "diagnose", "optimize")
_OF_CHAKRA = ("cluster", "link", "backend")


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    folder = (
        "with the trace of each rank, as torch.profiler or cdmpp.trace.record write it, or Chakra traces, NAME.0.et"
    )
    verb.add_argument("folder", type=path, help=folder)
    changes = (
        "replay with other settings: bandwidth=0.5 and latency=2 (factors of the links; "
        "link_gbps=1 beside bandwidth tells what the traced ones carry), bucket_mb=1, ranks=4, "
        "straggler=no, kernel:NAME=0.9 (a factor of the operators with NAME in their name)"
    )
    verb.add_argument("--what-if", type=text, nargs="+", default=[], metavar="KEY=VALUE", help=changes)
    verb.add_argument("--check", action="store_true", help="show what was read of the traces, and no answer")
    verb.add_argument(
        "--step-mark", type=text, metavar="REGEX",
        help="host events whose name it finds begin a step, for traces without torch.profiler's ProfilerStep marks",
    )  # fmt: skip
    verb.add_argument("--diagnose", action="store_true", help="why a step is long: causes in seconds a step, ranked")
    verb.add_argument("--optimize", action="store_true", help="search settings under which the step is shorter")
    add_search_arguments(verb)
    verb.add_argument("--save-plan", type=path, metavar="FILE", help="write the plan of --optimize as YAML")
    add_chakra(verb)
    chakra = verb.add_argument_group("Chakra traces")
    add_place(chakra)
    chakra.add_argument("--backend", type=text, help="nccl, rccl, oneccl or gloo (default: of the traces, or nccl)")
    add_output_arguments(verb, "csv", "html", "timeline")


def run(options: argparse.Namespace) -> None:
    """Read the traces, replay them, and show the reports."""
    settings = read_settings(options.what_if)
    if not options.optimize and (given := [name for name in _OF_SEARCHES if getattr(options, name) is not None]):
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --optimize")
    if options.check and (given := [name for name in _ANSWERS if getattr(options, name)]):
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --check, which shows no answer")
    for name in ("csv", "parquet", "html", "timeline", "save_plan"):
        if (file := getattr(options, name)) is not None and file.resolve().parent == options.folder.resolve():
            raise UsageError(f"cannot write {file}: it is in the folder of the traces; choose another folder")
    check_output(options, options.save_plan)
    check_chakra(options)
    is_chakra = _has_chakra(options.folder)
    if given := [name for name in (_OF_PROFILES if is_chakra else _OF_CHAKRA) if getattr(options, name)]:
        kinds = ("torch.profiler", "Chakra") if is_chakra else ("Chakra", "torch.profiler")
        raise UsageError(f"--{given[0].replace('_', '-')} is of traces of {kinds[0]}, these are of {kinds[1]}")
    if is_chakra:
        replay_chakra(options)
        return
    from cdmpp.report.plan import plan_report
    from cdmpp.report.trace import trace_report
    from cdmpp.report.trace_check import check_report
    from cdmpp.steps.replay import replay
    from cdmpp.trace.diagnosis import diagnose
    from cdmpp.trace.folder import read_recordings, read_traces, traced_job
    from cdmpp.trace.traced_step import traced_steps
    from cdmpp.trace.what_if import changed, doubts

    traces = read_traces(options.folder, _pattern(options.step_mark), sys.stderr.isatty())
    if options.check:
        show({"": check_report(traces)}, options)
        return
    job = traced_job(options.folder, traces)
    graph = job.graph
    if any(trace.is_partial for trace in job.traces):
        for key in [key for key in ("ranks", "straggler") if key in settings]:
            raise CdmppError(f"--what-if {key}: traces of some ranks are missing, so that nobody knows what they add")
    recordings = read_recordings(options.folder)
    save_chakra(graph, options)
    base = replay(graph)
    asked = replay(changed(graph, settings)) if settings else None
    causes = diagnose(graph) if options.diagnose else None
    read = [trace.inventory for trace in job.traces]
    warnings = (*job.warnings, *doubts(graph, settings))
    reports = {
        "": trace_report(
            graph, base, recordings, settings, asked, causes, job.numbers, traced_steps(job), read, warnings
        )
    }
    searched = _searched(graph, options.accumulate_steps) if options.optimize else None
    if searched is not None:
        reports["optimized"] = plan_report(searched)
    show(reports, options)
    if searched is not None:
        write_plan(searched.plan, options)


def _has_chakra(folder: Path) -> bool:
    return folder.is_dir() and any(one.name.endswith(".0.et") for one in folder.iterdir())


def _pattern(mark: str | None) -> str | None:
    try:
        return mark if mark is None else re.compile(mark).pattern
    except re.error as error:
        raise UsageError(f"--step-mark {mark}: no regular expression: {error}") from None


def read_settings(given: list[str]) -> dict[str, str]:
    """Turn ``["bandwidth=0.5"]`` into ``{"bandwidth": "0.5"}``; ``UsageError`` for another form."""
    found: dict[str, str] = {}
    for word in given:
        key, equals, value = word.rpartition("=")
        if not equals or not key or not value:
            raise UsageError(f"--what-if {word}: expected KEY=VALUE, such as bandwidth=0.5")
        if key in found:
            raise UsageError(f"--what-if {key} is given twice: {key}={found[key]} and {word}")
        found[key] = value
    return found


def _searched(graph: StepGraph, most_accumulation_steps: int | None) -> SearchResult:
    from cdmpp.plans.traced_step import optimize_traced

    return optimize_traced(graph, most_accumulation_steps or 1)

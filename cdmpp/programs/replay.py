"""Schedule trace -> scheduled module. A stored trace (a few kB) reproduces the measured program exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import Schedule, Trace

from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.platform.cache import keep_text, note_use
from cdmpp.platform.paths import cache_root
from cdmpp.programs.gate import check_trace
from cdmpp.programs.language import check_target
from cdmpp.programs.script import parse_text
from cdmpp.programs.task import Program


@lru_cache(maxsize=1024)
def parse_workload(workload: str) -> tvm.IRModule:
    """Parse TVMScript text of an unscheduled module. Cached, also on disk: parsing costs more than a replay.

    ``DataError``: the text is no module.
    """
    with suppress(Exception):  # not kept, or damaged in one of many ways
        module = tvm.ir.load_json((path := parsed_path(workload)).read_text())
        note_use(path)
        return module
    head = workload.strip().splitlines()[0][:80] if workload.strip() else "(empty)"
    try:
        parsed = parse_text(workload, f"workload that begins with {head!r}")
    except UnsupportedProgramError as error:
        raise DataError(f"cannot parse the TVMScript of a {error}") from error
    with suppress(DataError):  # for speed alone
        keep_text(parsed_path(workload), tvm.ir.save_json(parsed))
    return parsed


def parsed_path(workload: str) -> Path:
    """Return the path of the JSON graph that spares the parser (0.04 s), where one is kept."""
    digest = hashlib.sha256(workload.encode()).hexdigest()[:24]
    return cache_root() / "parsed" / f"tvm-{tvm.__version__}" / f"{digest}.json"


@lru_cache(maxsize=64)
def _target_of_json(text: str) -> tvm.target.Target:
    value = json.loads(text)
    check_target(value, "target")
    return tvm.target.Target(value)


def parse_target(target: str | Mapping[str, Any] | tvm.target.Target) -> tvm.target.Target:
    """Make a TVM target of a ``Target``, a dict or the JSON of a dict. Host and annotations in it are kept."""
    if isinstance(target, tvm.target.Target):
        return target
    try:
        return _target_of_json(target if isinstance(target, str) else json.dumps(target, sort_keys=True))
    except Exception as error:  # json and several kinds of TVM errors
        raise DataError(f"not a TVM target: {str(target)[:200]} ({error})") from error


def replay(
    workload: str, schedule: str, target: str | Mapping[str, Any] | tvm.target.Target, task_id: str = "", name: str = ""
) -> Program:
    """Apply the trace ``schedule`` (JSON ``[instructions, decisions]``) to ``workload`` (TVMScript).

    About 5-20 ms. Raises ``DataError`` where the trace does not fit the workload.
    """
    return Program(replay_schedule(workload, schedule).mod, parse_target(target), task_id, schedule, name)


def replay_schedule(workload: str, schedule: str) -> Schedule:
    """Replay as ``replay`` does, but return the TVM ``Schedule`` itself (MetaSchedule's feature extractors take it)."""
    return replay_on(parse_workload(workload), schedule)


def replay_on(module: tvm.IRModule, schedule: str) -> Schedule:
    """Apply a trace to a workload that is a module already; TVMScript of a scheduled program takes its place."""
    scheduled = not schedule.startswith("[")
    result = Schedule(parse_workload(schedule) if scheduled else module, debug_mask="none", error_render_level="none")
    if scheduled:
        return result
    try:
        trace = json.loads(schedule)
        check_trace(trace, "schedule")
        Trace.apply_json_to_schedule(trace, result)
    except Exception as error:  # TVM raises several types for a step that does not apply
        raise DataError(f"the schedule trace does not replay on its workload: {error}") from error
    return result

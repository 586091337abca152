"""Reader of the traces that ``torch.profiler`` exports (Kineto), of CPU jobs on gloo and of GPU jobs on NCCL."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from cdmpp.collectives.topology import MOST_RANKS
from cdmpp.errors import DataError
from cdmpp.platform.content import content_of
from cdmpp.platform.limits import shown
from cdmpp.trace.host_ops import host_steps
from cdmpp.trace.kernels import kernel_steps
from cdmpp.trace.rank_trace import RankTrace

Event = dict[str, Any]


def read_kineto(path: Path) -> RankTrace:
    """One rank's trace, JSON or gzipped JSON; the rank is what the file says, not its name.

    Raises:
        DataError: no such trace, no rank in it, or no marked steps.
    """
    whole = _load(path)
    info = whole.get("distributedInfo")
    if not isinstance(info, dict) or "rank" not in info:
        raise DataError(
            f"{path} does not say its rank (distributedInfo): start the process group before the profiler, "
            "or record with cdmpp.trace.record"
        )
    events = [event for event in whole["traceEvents"] if _is_span(event)]
    try:
        rank, world = int(info["rank"]), int(info.get("world_size", 1))
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"{path}: distributedInfo {info} has no rank that is a number: expected whole numbers"
        ) from None
    if not 0 <= rank < world <= MOST_RANKS:
        raise DataError(
            f"{path}: distributedInfo says rank {rank} of a world of {world}: expected a rank below the world's size, "
            f"which is at most {MOST_RANKS:,}"
        )
    marks = [e for e in events if str(e["name"]).startswith("ProfilerStep#") and e.get("cat") == "user_annotation"]
    if not marks:
        raise DataError(f"{path} has no steps: give torch.profiler a schedule and call its step() after each step")
    marks.sort(key=lambda event: event["ts"])
    read = kernel_steps if any(event.get("cat") == "kernel" for event in events) else host_steps
    steps, workers = read(events, marks, rank, world)
    return RankTrace(rank, world, str(info.get("backend", "")), steps, str(path), workers)


def _is_span(event: Any) -> bool:
    """True if it has a name, a thread, a begin and a length; what else lies in the file is left out."""
    if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("args", {}), dict):
        return False
    if not isinstance(event.get("tid"), int | str):
        return False
    times = (event.get("ts"), event.get("dur"))
    return isinstance(event.get("name"), str) and all(isinstance(t, int | float) and math.isfinite(t) for t in times)


def _load(path: Path) -> dict[str, Any]:
    text = content_of(path)
    try:
        whole = json.loads(text.decode("utf-8"))  # torch.profiler may write a key of ``args`` twice
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path} as a trace: {shown(str(error))}") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("traceEvents"), list):
        raise DataError(f"{path} is no trace: it has no traceEvents")
    return whole

"""Event: one span of a trace, and what it is by its category."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from cdmpp.platform.limits import shown

_NOTHING: Mapping[str, Any] = {}
_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_COPIES = ("memcpy", "memset", "dma")
_NO_DEVICE = ("annotation", "runtime", "driver", "cpu_op", "python", "overhead", "sync", "profiler_range", "trace")
_WAITS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
_UNUSED = re.compile(
    "query|getdevice|peekat|lasterror|attribute|occupancy|iscapturing|captureinfo|propert|malloc", re.I
)
_OF_COLLECTIVES = (
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Input Dims", "Input type", "Concrete Inputs", "Seq",
)  # fmt: skip
_DIGITS = 20
"""Most letters of a whole number that is written as text."""
_SHAPED = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "record_param_comms", "torch::autograd::AccumulateGrad",
           "torch.distributed.ddp.reducer::", "torch::distributed::reducer::", "xccl:", "hccl:")  # fmt: skip


class Event(NamedTuple):
    """An event is one span of a trace."""

    category: str
    name: str
    ts: float
    """Microseconds, by the clock of its rank."""
    dur: float
    """Microseconds."""
    tid: int | str
    pid: int | str
    correlation: int | str | None = None
    """Number that a launch shares with what it starts."""
    external: int | str | None = None
    """Number that an operator shares with its launches."""
    stream: int | str | None = None
    device: int | str | None = None
    args: Mapping[str, Any] = _NOTHING
    """What else is needed: sizes of a collective, what a stream waits for."""

    @property
    def end(self) -> float:
        """Return its end in microseconds."""
        return self.ts + self.dur

    @property
    def is_mark(self) -> bool:
        """Return True if PyTorch's profiler marks a step with it."""
        return self.category == "user_annotation" and self.name.startswith("ProfilerStep#")


class Broken(NamedTuple):
    """This event cannot be used."""

    category: str
    reason: str
    """What is wrong with it, with its name."""
    ts: float | None
    correlation: int | str | None


def kind_of_category(category: str, has_stream: bool) -> str:
    """Return ``device``, ``launch``, ``sync``, ``host`` or nothing for a category of any accelerator, by its words."""
    lower = category.lower()
    if lower in _DEVICE:
        return "device"
    if lower.endswith(("runtime", "driver")):
        return "launch"
    if lower.endswith("_sync"):
        return "sync"
    if lower in ("cpu_op", "user_annotation"):
        return "host"
    return "device" if has_stream and not any(word in lower for word in _NO_DEVICE) else ""


@lru_cache(1 << 12)
def is_unused(call: str) -> bool:
    """Return True for a call of a runtime that neither starts nor awaits work."""
    return _UNUSED.search(call) is not None


@lru_cache(1 << 14)
def is_copy(category: str, name: str) -> bool:
    """Return True for a copy; a kernel that only has such a word in its name computes."""
    return category in ("gpu_memcpy", "gpu_memset") or name.lower().startswith(_COPIES)


def event_of(parsed: Mapping[str, Any], kind: str, base_us: float = 0.0) -> Event | Broken:
    """Read an event of a file, counted from ``base_us``; ``kind`` as ``kind_of_category`` tells it."""
    name, args, ts, dur = parsed.get("name"), parsed.get("args"), parsed.get("ts"), parsed.get("dur")
    category = parsed.get("cat") or ""
    if type(args) is not dict:
        args = _NOTHING
    if type(ts) is not float or type(dur) is not float:
        ts, dur = _number(ts), _number(dur)
    if type(name) is not str or ts is None or dur is None or not 0 <= dur < math.inf or not -1e18 < ts < 1e18:
        return Broken(
            category, _reason(parsed, category), None if ts is None else ts - base_us, _link(args, "correlation")
        )
    tid, pid = parsed.get("tid"), parsed.get("pid")
    if type(tid) is not int and type(tid) is not str:
        reason = f"{category} {name[:80]!r} has the thread {tid!r}"
        return Broken(category, reason, ts - base_us, _link(args, "correlation"))
    pid = pid if type(pid) is int or type(pid) is str else ""
    if kind == "host":
        more = args if name.startswith(_SHAPED) else _NOTHING
        return Event(category, name, ts - base_us, dur, tid, pid, None, _link(args, "External id"), args=more)
    correlation = args.get("correlation")
    if type(correlation) is not int and correlation is not None:
        try:
            correlation = whole(correlation)
        except ValueError:
            reason = f"{category} {name[:80]!r} has the correlation {shown(correlation)}, which is no whole number"
            return Broken(category, reason, ts - base_us, None)
    more = _NOTHING
    if "Collective name" in args:
        more = {key: args[key] for key in _OF_COLLECTIVES if key in args}
    elif "wait_on_stream" in args:
        more = {key: args[key] for key in _WAITS if type(args.get(key)) in (int, str)}
    return Event(
        category, name, ts - base_us, dur, tid, pid, correlation, _link(args, "External id"),
        _link(args, "stream"), _link(args, "device"), more,
    )  # fmt: skip


def whole(given: Any) -> int:
    """Return a whole number, or that of its text as older exports write it; ``ValueError`` for anything else."""
    if type(given) is int or (type(given) is float and given.is_integer()):
        return int(given)
    if type(given) is str and len(given) <= _DIGITS:
        return int(given)
    raise ValueError("no whole number")


def _link(args: Mapping[str, Any], key: str) -> int | str | None:
    found = args.get(key)
    return found if type(found) is int or type(found) is str else None


def _number(given: Any) -> float | None:
    """A number, or the text of one as older exports write it; None for anything else."""
    if type(given) is bool or not isinstance(given, int | float | str):
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _reason(parsed: Mapping[str, Any], category: str) -> str:
    name = parsed.get("name")
    what = f"{category} {str(name)[:80]!r}"
    if type(name) is not str:
        return f"{what} has no name"
    for key, word in (("ts", "begin"), ("dur", "length")):
        if (number := _number(parsed.get(key))) is None or not -1e18 < number < 1e18:
            return f"{what} has a {word} of {str(parsed.get(key))[:40]}, which is no time"
    return f"{what} has a length of {_number(parsed.get('dur')):.12g} us"

"""Exchanges between ranks among the events of a trace: their kinds, bytes and groups."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cdmpp.trace.event import Event

_ITEM_BYTES = {
    "double": 8, "long int": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "uint64": 8,
    "float": 4, "int": 4, "float32": 4, "int32": 4, "uint32": 4, "c10::half": 2, "half": 2, "c10::bfloat16": 2,
    "bfloat16": 2, "float16": 2, "short": 2, "int16": 2, "uint16": 2, "signed char": 1, "unsigned char": 1, "char": 1,
    "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_KINDS = (
    ("all_reduce", ("allreduce", "all_reduce")),
    ("reduce_scatter", ("reducescatter", "reduce_scatter")),
    ("all_gather", ("allgather", "all_gather")),
    ("all_to_all", ("alltoall", "all_to_all")),
    ("broadcast", ("broadcast",)),
    ("send_recv", ("sendrecv", "send", "recv")),
    ("barrier", ("barrier",)),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
)
_MOST = 2**53
"""Most bytes that an exchange may have."""
_NAMES = frozenset(kind for kind, _ in _KINDS)
_COLLECTIVE = re.compile(r"^(void )?(nccl|rccl|oneccl|hccl|xccl|mscclKernel|msccl)|ncclDevKernel|ncclKernel", re.I)
_RECORD = re.compile(r"^(nccl|rccl|xccl|hccl|ucc|mtia\w*ccl):|^record_param_comms$")


class ExchangeRecord(NamedTuple):
    """A trace says this about one exchange."""

    kind: str
    bytes: int
    """Bytes as ``collectives.collective.KINDS`` counts them; 0: unknown."""
    group: str
    sequence: int | None = None
    """Number that all ranks of the group count it by."""


@lru_cache(1 << 14)
def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None


@lru_cache(1 << 14)
def kind_of(name: str) -> str:
    """Read ``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` as ``all_reduce``; a name without a known kind as it is."""
    lower = name.lower()
    return next((kind for kind, words in _KINDS if any(word in lower for word in words)), name)


def is_gloo(event: Event) -> bool:
    """Return True for a span of gloo's worker thread, from the arrival of this rank to the end."""
    return event.name.startswith("gloo:")


def is_collective(event: Event) -> bool:
    """Return True for a kernel of NCCL, RCCL or the like on a device."""
    return _matches(_COLLECTIVE, event.name) or "Collective name" in event.args


def is_record(event: Event) -> bool:
    """Return True for the span in which the host hands a collective over, with what it is."""
    return _matches(_RECORD, event.name)


def is_launch(event: Event) -> bool:
    """Return True for the call that hands an exchange over."""
    return event.category == "cpu_op" and event.name.startswith(("c10d::", "_c10d_functional::"))


def input_bytes(event: Event) -> int:
    """Count bytes of the tensors that a recorded op was given; 0 without ``record_shapes``."""
    shapes, kinds = event.args.get("Input Dims"), event.args.get("Input type")
    return _known(sum(map(_tensor_bytes, shapes, kinds))) if isinstance(shapes, list) and isinstance(kinds, list) else 0


def _known(size: int) -> int:
    """Bytes, or 0 for a number that no size can be."""
    return size if 0 <= size <= _MOST else 0


def input_dtype(event: Event) -> str:
    """Return the data type of the first tensor that a recorded op was given; ``float32`` without ``record_shapes``."""
    kinds = event.args.get("Input type")
    name = str(kinds[0] if isinstance(kinds, list) and kinds else "float").lower().removeprefix("c10::")
    return _DTYPES.get(name, name) if name in _ITEM_BYTES else "float32"


def _tensor_bytes(shape: Any, kind: Any) -> int:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):  # a list of tensors
        kinds = kind if isinstance(kind, list) else [kind] * len(shape)
        return sum(map(_tensor_bytes, shape, kinds))
    if not isinstance(shape, list) or str(kind).lower() not in _ITEM_BYTES or any(type(n) is not int for n in shape):
        return 0
    return _ITEM_BYTES[str(kind).lower()] * math.prod(shape)


def gloo_bytes(event: Event, kind: str, ranks: int) -> int:
    """Count bytes as ``collectives.collective.KINDS`` does: a gather is given the share of one of ``ranks``.

    0, unknown, for a gather among a number of ranks that is 0, unknown.
    """
    return _known(input_bytes(event) * (ranks if kind == "all_gather" else 1))


def group_name(args: Mapping[str, Any]) -> str:
    """Return the name of the process group of an exchange; empty where the trace has none."""
    return next((str(args[key]) for key in ("Process Group Name", "Process Group Description") if args.get(key)), "")


def group_size(args: Mapping[str, Any]) -> int:
    """Return the number of ranks of the process group of an exchange; 0: unknown."""
    size = args.get("Group size")
    return size if type(size) is int and size > 0 else 0


def record_of(event: Event, ranks: int) -> ExchangeRecord:
    """Read what a kernel's own arguments, or a record of the host, say.

    Args:
        event: the kernel, or the record.
        ranks: of a process group of which the event does not say how many it has; 0: unknown.
    """
    args = event.args
    kind = kind_of(str(args.get("Collective name") or event.name))
    item = _ITEM_BYTES.get(str(args.get("dtype", "")).lower(), 0)
    counts = [args.get(f"{way} msg nelems", 0) for way in ("In", "Out")]
    size = max(n if type(n) is int else 0 for n in counts) * item
    if not size and "Collective name" not in args:
        size = gloo_bytes(event, kind, group_size(args) or ranks)
    group, number = f"{group_name(args)}{args.get('Process Group Ranks', '')}", args.get("Seq")
    return ExchangeRecord(kind, _known(size), group, number if type(number) is int and number >= 0 else None)


class Records:
    """The host's records are found by the launch of a kernel: the innermost around it, or of the same External id."""

    def __init__(self, host: Sequence[Event], ranks: int) -> None:
        self.ranks = ranks
        self._by_thread: dict[Any, list[Event]] = defaultdict(list)
        self._by_id: dict[Any, list[Event]] = defaultdict(list)
        for event in sorted((one for one in host if is_record(one)), key=lambda one: one.ts):
            self._by_thread[event.tid].append(event)
            if event.external is not None:
                self._by_id[event.external].append(event)
        self._starts = {tid: [one.ts for one in found] for tid, found in self._by_thread.items()}

    def of(self, kernel: Event, launch: Event | None) -> ExchangeRecord:
        """Return kind, bytes and group of a kernel: its own arguments, filled up from the records of the host."""
        found = record_of(kernel, self.ranks)
        if found.bytes and found.group and found.sequence is not None:
            return found
        for event in self._around(launch) if launch is not None else self._same_id(kernel, kernel.ts):
            said = record_of(event, self.ranks)
            if said.kind not in _NAMES:
                continue
            is_same = said.kind == found.kind or found.kind == kernel.name or kernel_hides(kernel.name)
            if "Collective name" not in kernel.args and (is_same or found.kind == "send_recv"):
                found = found._replace(kind=said.kind)
            if said.kind == found.kind:
                number = said.sequence if found.sequence is None else found.sequence
                found = ExchangeRecord(found.kind, found.bytes or said.bytes, found.group or said.group, number)
        return found

    def doubts(self, found: Sequence[Any]) -> list[str]:
        """Say how many gathers have unknown bytes because nothing says among how many ranks they are."""
        blind = sum(one.kind == "all_gather" and not one.bytes for one in found)
        if self.ranks or not blind:
            return []
        return [f"{blind:,} all_gathers name no process group, and the job has several: their bytes are unknown"]

    def _around(self, launch: Event) -> list[Event]:
        starts = self._starts.get(launch.tid, [])
        events = self._by_thread.get(launch.tid, [])
        place, found = bisect_right(starts, launch.ts), []
        for event in reversed(events[max(place - 8, 0) : place]):
            if event.end >= launch.ts:
                found.append(event)
        return found or self._same_id(launch, launch.ts)

    def _same_id(self, event: Event, moment: float) -> list[Event]:
        """Ids may come again in later steps: the last one that began before."""
        same = [one for one in self._by_id.get(event.external, ()) if one.ts <= moment]
        return same[-1:]


def kernel_hides(name: str) -> bool:
    """Return True for a kernel whose name does not say which collective it runs."""
    return "Generic" in name


def peers_of(launch: Event | None, rank: int) -> str:
    """Return ``0->1`` of a send or a receive, by the numbers that it was called with; empty otherwise."""
    if launch is None:
        return ""
    given = launch.args.get("Concrete Inputs", ())
    numbers = [int(text) for text in given if re.fullmatch(r"-?[0-9]{1,18}", str(text))]
    if not numbers:
        return ""
    if launch.name.startswith("c10d::send"):
        return f"{rank}->{numbers[0]}"
    return f"{numbers[0]}->{rank}" if launch.name.startswith("c10d::recv") else ""


def unknown(exchanges: Sequence[Any]) -> list[Any]:
    """List exchanges whose bytes nobody said; a barrier has none to say."""
    return [one for one in exchanges if not one.bytes and one.kind != "barrier"]


def summary(exchanges: Sequence[Any]) -> Mapping[str, tuple[int, int, int]]:
    """Count exchanges by kind: how many, how many of them with known bytes, and these bytes."""
    found: dict[str, tuple[int, int, int]] = {}
    for one in exchanges:
        count, known, size = found.get(one.kind, (0, 0, 0))
        found[one.kind] = (count + 1, known + (one.bytes > 0), size + one.bytes)
    return found

"""StepGraph: what every rank computes and exchanges in one training step, wherever that is known from.

A prediction, a trace, a table of layers and an example made by hand fill it. A parallel strategy adds exchanges to it,
transforms change it, and ``tasks`` makes one simulated graph of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cdmpp.errors import CdmppError, DataError
from cdmpp.network.training_step import PHASES, StepBuffer
from cdmpp.platform.limits import Limits, check_all, fitting, shown
from cdmpp.simulate.task import check_seconds
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.module_span import ModuleSpan

HOST_COPY = "host copy"
"""Kind of ops that copy between a device and the memory of its host: no computing."""
LAUNCH, COPY, BOOKKEEPING = "launch", "bucket copy", "bookkeeping"
"""Kinds of traced ops: a call that hands an exchange over, a copy from a bucket back into its gradients, and an op of
the update that changes no parameter."""

_COUNT = Limits(0, 2**53)


@dataclass(frozen=True)
class Op:
    """An op is a kernel, or an operator of a framework with all that it runs."""

    name: str
    """Need not be unique: an op is known by its place."""
    phase: str
    """One of ``PHASES``."""
    duration_s: float
    """Seconds with its device for itself, without waiting for other ranks."""
    gap_s: float = 0.0
    """Seconds after its end until its stream is free again: the host launches the next op."""
    kind: str = ""
    """Kind of its work, such as ``conv2d``; ``LAUNCH``, ``COPY``, ``BOOKKEEPING`` or nothing for a traced op."""
    stream: str = "compute"
    """Queue of its rank. Ops of one stream run in the order in which they are given."""
    waits: tuple[int, ...] = ()
    """Places of earlier ops on other streams that it waits for."""
    is_recomputed: bool = False
    """True if it runs an op of the forward pass again, in the backward pass."""
    delay_s: float = 0.0
    """Seconds before its start, after the end of all that it waited for: the host, the launch."""
    spread_s: float = 0.0
    """Half of the distance between the quartiles of its measured durations."""
    output_bytes: int = 0
    """Bytes that it writes."""
    inputs: tuple[int, ...] = ()
    """Places of the ops whose results it reads. A result of the forward pass that the backward pass reads is saved."""
    saved_bytes: int | None = None
    """Bytes of what it writes that the backward pass reads; None: all, if it reads any."""
    result_bytes: int | None = None
    """Bytes of its result, without what it writes for its backward pass; None: all that it writes."""
    forward: int | None = None
    """Place of the op of the forward pass whose gradients it makes, or that it runs again; None: unknown."""
    workspace_bytes: int = 0
    """Bytes that it holds while it runs, beside what it reads and writes."""
    own_saved_bytes: int | None = None
    """Bytes of ``saved_bytes`` that the backward pass of this op reads, such as a mask; only that of others reads the
    rest. None: all."""
    gradient_bytes: int | None = None
    """Bytes of gradients of parameters among what it writes; None: all, if it makes any."""
    held: tuple[int, ...] = ()
    """Places of ops whose results are held until it ran, beside those that it reads: arguments of its module."""

    def is_sound_at(self, place: int) -> bool:
        """Return True if it may be op ``place`` of a rank; quick, since graphs have many."""
        try:
            return (
                (0 <= self.duration_s < math.inf and 0 <= self.gap_s < math.inf)
                and (0 <= self.delay_s < math.inf and 0 <= self.spread_s < math.inf)
                and (self.inputs == () or _are_places(self.inputs, place))
                and (self.held == () or _are_places(self.held, place))
                and (self.waits == () or _are_places(self.waits, place))
                and (isinstance(self.name, str) and isinstance(self.kind, str) and isinstance(self.stream, str))
                and isinstance(self.is_recomputed, bool)
                and (isinstance(self.output_bytes, int) and self.output_bytes >= 0)
                and (isinstance(self.workspace_bytes, int) and self.workspace_bytes >= 0)
                and all(
                    size is None or (type(size) is int and size >= 0)
                    for size in (self.saved_bytes, self.result_bytes, self.own_saved_bytes, self.gradient_bytes)
                )
                and (self.forward is None or (type(self.forward) is int and 0 <= self.forward < place))
                and self.phase in PHASES
            )
        except TypeError:
            return False


def _are_places(others: tuple[int, ...], place: int) -> bool:
    if not others:  # no empty tuple: a text or a list
        return False
    return all([isinstance(other, int) for other in others]) and min(others) >= 0 and max(others) < place


@dataclass(frozen=True)
class Gradient:
    """This is the gradient of one parameter."""

    name: str
    """Name of the parameter."""
    bytes: int
    """Bytes of the gradient as it is exchanged; 0: unknown."""
    ready_after: int
    """Place of the op of the backward pass that makes it."""
    dtype: str = "float32"
    """Its data type; gradients of different types share no bucket."""
    is_used: bool = True
    """False if there is none in this step, since the loss does not depend on the parameter."""
    readers: tuple[int, ...] = ()
    """Places of the ops of the forward pass that read the parameter; empty: unknown."""
    apart: tuple[str, ...] = ()
    """Degrees along which ranks, each with a batch of its own, have other parameters under the name, such as experts:
    nobody averages them along these."""
    meshes: tuple[str, ...] = ()
    """Degrees that divide operators and along which the framework has the parameter as one tensor, a ``DTensor``: the
    norm of its gradient is one over all of these ranks."""


@dataclass(frozen=True)
class RankGraph:
    """This is one step of one rank. Ops stand in the order in which they are launched."""

    rank: int
    ops: tuple[Op, ...]
    gradients: tuple[Gradient, ...] = ()
    """Gradients, in the order in which the model has its parameters."""
    modules: tuple[ModuleSpan, ...] = ()
    """FSDP modules, in the order of the forward pass; of several batches all modules of each, batch after batch. Empty:
    unknown, so that FSDP cannot be predicted."""
    start_s: float = 0.0
    """Seconds before the first op: what a step takes once, such as loading the next batch."""
    tail_s: float = 0.0
    """Seconds after the last op until the next step begins."""
    buffers: tuple[StepBuffer, ...] = ()
    """Buffers of the model, which DistributedDataParallel broadcasts."""
    update_shards: float = 1
    """Ranks over which parameters were sharded where the updates took this long: 1 where each updates all. No whole
    number where some are sharded over fewer ranks than others."""

    def __post_init__(self) -> None:
        fitting("rank", self.rank, int, _COUNT)
        check_seconds(self.start_s, f"start of rank {self.rank}")
        check_seconds(self.tail_s, f"tail of rank {self.rank}")
        lists = (("ops", Op), ("gradients", Gradient), ("modules", ModuleSpan), ("buffers", StepBuffer))
        for name, kind in lists:
            check_all(f"{name} of rank {self.rank}", getattr(self, name), kind)
        if type(self.update_shards) not in (int, float) or not 1 <= self.update_shards < math.inf:
            raise DataError(
                f"rank {self.rank}: parameters sharded over {self.update_shards!r} ranks: expected 1 or more"
            )
        for place, op in enumerate(self.ops):
            if not op.is_sound_at(place):
                self._refuse(place, op)
        for gradient in self.gradients:
            values = (gradient.name, gradient.dtype, gradient.is_used, gradient.bytes, gradient.ready_after)
            if (
                [*map(type, values)] != [str, str, bool, int, int]
                or not START <= gradient.ready_after < len(self.ops)
                or gradient.bytes < 0
            ):
                raise DataError(
                    f"gradient {gradient.name!r} of rank {self.rank} has {gradient.bytes!r} bytes after op "
                    f"{gradient.ready_after!r}: expected 0 or more, after one of {len(self.ops)} ops"
                )
            self._check_names(gradient)
        for module in self.modules:
            for phase, places in (("forward", module.forward), ("backward", module.backward)):
                if not self._is_span(module.bytes, places, phase):
                    self._check(f"module {module.name!r}", module.bytes, places, phase)

    def _check_names(self, gradient: Gradient) -> None:
        readers = gradient.readers
        if type(readers) is not tuple or not all([type(i) is int and 0 <= i < len(self.ops) for i in readers]):
            raise DataError(
                f"gradient {gradient.name!r} of rank {self.rank} has the readers {shown(readers)}: expected places "
                f"of {len(self.ops)} ops"
            )
        for what, names in (("apart", gradient.apart), ("one tensor", gradient.meshes)):
            if type(names) is not tuple or not all([type(name) is str for name in names]):
                raise DataError(
                    f"gradient {gradient.name!r} of rank {self.rank} is {what} along {shown(names)}: expected "
                    "names of degrees"
                )

    def _refuse(self, place: int, op: Op) -> None:
        what = f"op {place} ({op.name!r}) of rank {self.rank}"
        if op.phase not in PHASES:
            raise DataError(f"{what} is of phase {op.phase!r}, expected one of {', '.join(PHASES)}")
        check_seconds(op.duration_s, f"duration of {what}")
        check_seconds(op.gap_s, f"gap after {what}")
        check_seconds(op.delay_s, f"delay of {what}")
        named = (op.waits, op.inputs, op.held)
        others = [other for one in named for other in one] if all(isinstance(one, tuple) for one in named) else []
        if wrong := [other for other in others if not isinstance(other, int) or not 0 <= other < place]:
            raise DataError(f"{what} waits for op {wrong[0]}, which is no earlier one")
        raise DataError(f"{what} has a value that cannot be: {shown(op)}")

    def _is_span(self, n_bytes: int, places: Sequence[int], phase: str) -> bool:
        """True for what ``_check`` lets pass, but for some odd types; quick, since graphs have many."""
        if type(places) is not tuple or len(places) != 2 or type(n_bytes) is not int or n_bytes < 1:
            return False
        first, last = places
        if type(first) is not int or type(last) is not int or not 0 <= first <= last < len(self.ops):
            return False
        return self.ops[first].phase == phase and self.ops[last].phase == phase

    def _check(self, what: str, n_bytes: int, places: Sequence[int], phase: str) -> None:
        what = f"{what} of rank {self.rank}"
        if not isinstance(n_bytes, int) or n_bytes < 1:
            raise DataError(f"{what} has {n_bytes!r} bytes, expected at least 1")
        if not isinstance(places, tuple) or {*map(type, places)} != {int}:
            raise DataError(f"{what} has places {places!r} in the {phase} pass, expected whole numbers")
        for place in places:
            if not 0 <= place < len(self.ops) or self.ops[place].phase != phase:
                raise DataError(f"{what} names op {place}, which is not in the {phase} pass")
        if list(places) != sorted(places):
            raise DataError(f"{what} ends before it begins, at op {places[-1]}")

    def check_gradients(self) -> None:
        """Raise ``DataError`` unless each gradient has bytes and an op of the backward pass makes it."""
        return self._gradients_are_made

    @cached_property
    def _gradients_are_made(self) -> None:
        """None; it is worked out once, since each strategy of a search checks the same ranks."""
        ops = self.ops
        for one in self.gradients:
            if not (one.bytes >= 1 and one.ready_after >= 0 and ops[one.ready_after].phase == "backward"):
                self._check(f"gradient {one.name!r}", one.bytes, (one.ready_after,), "backward")

    @property
    def phase_s(self) -> dict[str, float]:
        """The ops of each phase take so long, with their delays and the gaps after them."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for op in self.ops:
            seconds[op.phase] += op.delay_s + op.duration_s + op.gap_s
        return seconds

    @cached_property
    def busy_s(self) -> float:
        """All ops take so many seconds, without delays and gaps."""
        return sum(op.duration_s for op in self.ops)

    @property
    def idle_s(self) -> float:
        """All delays and gaps take so long, with the start and the tail of the step."""
        return self.start_s + sum(op.delay_s + op.gap_s for op in self.ops) + self.tail_s

    @property
    def task_count(self) -> int:
        """One simulated step has so many tasks: ops and delays."""
        return sum(2 if op.delay_s else 1 for op in self.ops)

    @property
    def gradient_bytes(self) -> int:
        """All gradients that there are have so many bytes."""
        return sum(gradient.bytes for gradient in self.gradients if gradient.is_used)

    @cached_property
    def ready_order(self) -> tuple[Gradient, ...]:
        """These are gradients as they become ready; of those of one op those of later parameters first."""
        numbered = sorted(enumerate(self.gradients), key=lambda pair: (pair[1].ready_after, -pair[0]))
        return tuple(gradient for _, gradient in numbered)

    @cached_property
    def module_batches(self) -> tuple[tuple[int, ...], ...]:
        """These are the places of the modules of each batch."""
        found, seen = list[list[int]](), Counter[str]()
        for place, one in enumerate(self.modules):
            if seen[one.name] == len(found):
                found.append([])
            found[seen[one.name]].append(place)
            seen[one.name] += 1
        return tuple(map(tuple, found))

    @property
    def streams(self) -> tuple[str, ...]:
        """These are the names of its streams, in the order of their first ops."""
        return tuple(dict.fromkeys(op.stream for op in self.ops))

    @cached_property
    def synchronized(self) -> tuple[int, ...]:
        """These places wait for exchanged gradients: the first update on each stream, and the end of the step."""
        first: dict[str, int] = {}
        for place, op in enumerate(self.ops):
            if op.phase == "update":
                first.setdefault(op.stream, place)
        return (*first.values(), len(self.ops))


@dataclass(frozen=True)
class Measured:
    """These were measured of a step that ran on real devices. A predicted step has none."""

    steps_s: tuple[float, ...] = ()
    """Seconds of each traced step, mean over ranks."""
    waits_s: Mapping[int, float] | None = None
    """Rank -> seconds of a step for which its exchanges waited until the last rank arrived."""
    unprofiled_s: float | None = None
    """Median seconds of a step of the same run with the profiler off; None: not measured."""
    probed: tuple[tuple[str, int, float], ...] = ()
    """Kind, bytes and seconds of collectives over all ranks that were timed apart, by kind and rising bytes."""

    @property
    def step_s(self) -> float:
        """Return the median seconds of a traced step; NaN where none was traced."""
        ordered = sorted(self.steps_s)
        if not ordered:
            return float("nan")
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class StepGraph:
    """It is one training step of all ranks: what they compute, what they exchange, and what was measured of it."""

    ranks: tuple[RankGraph, ...]
    """One for each rank, from rank 0 up."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges. Those without a measured time start in this order, each after the end of the one before."""
    backend: str = ""
    """Back end that carried the traced exchanges; empty: unknown."""
    workers: int = 1
    """Traced exchanges that a rank runs at a time."""
    processor_share: float = 0.0
    """Share of a processor that a traced exchange takes while it is under way; 0: none, or not probed."""
    is_contention_free: bool = False
    """True if durations are those of ops that run next to no exchange: a replay then makes them longer next to one."""
    measured: Measured = field(default_factory=Measured)
    processors: tuple[str, ...] = ()
    """Name of the processor of each rank. Ranks of one processor share it evenly while they compute at the same time.
    Empty: each rank has one for itself."""

    def __post_init__(self) -> None:
        check_all("ranks", self.ranks, RankGraph)
        check_all("exchanges", self.exchanges, Exchange)
        if not self.ranks:
            raise DataError("no rank does anything: give one RankGraph for each rank, from 1 up")
        for name, kind in (("backend", str), ("is_contention_free", bool), ("measured", Measured)):
            if not isinstance(value := getattr(self, name), kind):
                raise DataError(f"step.{name} is {shown(value)}: expected a {kind.__name__}")
        fitting("step.workers", self.workers, int, _COUNT)
        fitting("step.processor_share", self.processor_share, float)
        if not 0 <= self.processor_share < 1:
            raise DataError(f"exchanges take {self.processor_share} of a processor: expected 0 to below 1")
        fitting("step.processors", self.processors, tuple[str, ...])
        if len(self.processors) not in (0, len(self.ranks)):
            raise DataError(
                f"{len(self.processors)} processors for {len(self.ranks)} ranks: name that of each, or none"
            )
        for place, rank in enumerate(self.ranks):
            if rank.rank != place:
                raise DataError(f"rank {rank.rank} stands in place {place}: give ranks in order, from 0")
        for number, one in enumerate(self.exchanges):
            if not set(one.after) <= set(range(len(self.ranks))):
                raise DataError(f"exchange {number} is of ranks {one.ranks}, the step has {len(self.ranks)} ranks")

    def waits(self, rank: int) -> dict[int, tuple[int, ...]]:
        """Map the place of an op of ``rank`` to the places of the exchanges that it waits for."""
        found: dict[int, tuple[int, ...]] = {}
        for number, one in enumerate(self.exchanges):
            for place in one.before.get(rank, ()):
                found[place] = (*found.get(place, ()), number)
        return found

    def check_alike(self) -> None:
        """Raise ``CdmppError`` unless all ranks have the same gradients and modules; it names the first difference."""
        for rank in self.ranks:
            rank.check_gradients()
            for what in ("gradients", "modules") if len(self.ranks) > 1 else ():
                own, first = ([_identity(one) for one in getattr(r, what)] for r in (rank, self.ranks[0]))
                if own != first:
                    odd = next((pair for pair in zip(own, first, strict=False) if pair[0] != pair[1]), None)
                    difference = f"{odd[0]} against {odd[1]}" if odd else f"{len(own)} against {len(first)}"
                    raise CdmppError(f"{what} of rank {rank.rank} are not those of rank 0: {difference}")

    def with_exchanges(self, exchanges: Iterable[Exchange]) -> StepGraph:
        """Replace the exchanges; first updates and the end of the step wait for each that is launched before them."""
        waiting = {rank.rank: rank.synchronized for rank in self.ranks}
        return replace(
            self,
            exchanges=tuple(
                replace(
                    one,
                    before={
                        rank: (
                            *one.before.get(rank, ()),
                            *(place for place in waiting[rank] if place > one.after[rank]),
                        )
                        for rank in one.ranks
                    },
                )
                for one in exchanges
            ),
        )


def _identity(one: Gradient | ModuleSpan) -> tuple[str | int, ...]:
    """What is equal on all ranks; the usual type goes without saying."""
    dtype = getattr(one, "dtype", "float32")
    return (one.name, one.bytes) if dtype == "float32" else (one.name, one.bytes, dtype)

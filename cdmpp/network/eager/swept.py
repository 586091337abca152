"""A network at many sizes: it is exported once, or a few times, and its calls at all sizes follow from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.compose import alive_bytes
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.read import ExportedRun, export_run
from cdmpp.network.eager.sized_run import SizedRun, run_at
from cdmpp.network.eager.step import ExportedStep, export_step
from cdmpp.network.eager.symbolic import Shapes, SymbolicExport, batch_in, shapes_of, symbolic_export
from cdmpp.network.workload import Workload

Point = Mapping[str, int]
"""Name of an axis -> its size."""
_MOST_EXPORTS = 6
"""So many graphs, each for a part of the sizes, are looked for; what is left is read point by point."""


@dataclass(frozen=True)
class SweptRead:
    """These are the calls of a network at one point."""

    point: Point
    read: EagerNetwork
    is_derived: bool
    """True if they follow from an export at other sizes; else it was exported at its own."""


class SweptReader:
    """It reads a workload at many points.

    The network is exported with open sizes, and torch says under which conditions that graph is the one of other sizes.
    Points that they exclude get an export of their own. At the largest point of each export the network is also read by
    itself: if any call differs, no point of that export is derived.
    """

    def __init__(self, kind: str, at: Callable[[Point], Workload]) -> None:
        """Read nothing yet.

        Args:
            kind: of the device, as of ``read_run``.
            at: makes the workload of a point.
        """
        self.kind, self.at = kind, at
        self.reasons = dict[str, None]()
        """Why points were read one by one, a sentence each."""
        self.families: list[_Family] = []
        self.refused: list[tuple[Point, CdmppError]] = []
        """Points that the network does not have, and why."""

    def read(self, points: Sequence[Point]) -> Iterator[SweptRead]:
        """Read all points, not in their order.

        Raises:
            CdmppError: the network cannot be read at one of them.
        """
        left, exports = list(points), 0
        while left and exports < _MOST_EXPORTS:
            exports += 1
            base = max(left, key=lambda point: sum(size > 1 for size in point.values()))
            try:
                derived = self._derived(base, left)
            except AxisError:
                raise
            except CdmppError as error:
                self.reasons[f"each of {len(left)} points is exported by itself: {error}"] = None
                break
            yield from derived
            done = [one.point for one in derived]
            left = [point for point in left if point not in done]
        else:
            if left:
                self.reasons[
                    f"each of {len(left)} points is exported by itself: the network runs other operators there than at "
                    "the rest"
                ] = None
        for point in left:
            try:
                found = SweptRead(point, self.read_one(point), is_derived=False)
            except CdmppError as error:
                self.refused.append((point, error))
                continue
            yield found

    def derived(self, point: Point, kind: str) -> EagerNetwork | None:
        """Read a point that has the graph of one that was read before, on any GPU; None where it has not."""
        found = next((family for family in self.families if family.has(point)), None)
        return None if found is None else found.read(point, kind)

    def check(self, point: Point) -> None:
        """Raise ``CdmppError`` where the network has no inputs of these sizes, before it is read at any."""
        self._shapes(point)

    def possible(self, points: Sequence[Point]) -> list[Point]:
        """Return the points at which the network has inputs, before it is read at any; the others are refused.

        What it has at larger sizes it has at smaller ones; only points that are larger than any others are looked at
        where all is well.
        """
        found: list[Point] = []
        for point in sorted(points, key=lambda one: -math.prod(size + 1 for size in one.values())):
            if any(all(size <= other[axis] for axis, size in point.items()) for other in found):
                continue
            smaller = next((one for one in self.refused if all(one[0][axis] <= point[axis] for axis in point)), None)
            try:
                if smaller is not None:
                    raise smaller[1]
                self._shapes(point)
            except CdmppError as error:
                self.refused.append((point, error))
            else:
                found.append(point)
        no = [point for point, _ in self.refused]
        return [point for point in points if point not in no]

    def read_one(self, point: Point) -> EagerNetwork:
        """Read one point by itself."""
        return _read(self._export(point), self.kind)

    def _export(self, point: Point, **options: Any) -> ExportedRun | ExportedStep:
        workload = self.at(point)
        exported = export_step if workload.mode == "training_step" else export_run
        return exported(workload, self.kind, **options)

    def _shapes(self, point: Point) -> Shapes:
        """The shapes of all inputs of a point, of which no export is made."""

        def exporter(_: Any, inputs: Any, **__: Any) -> NoReturn:
            raise _Asked(shapes_of(inputs))

        try:
            self._export(point, exporter=exporter)
        except _Asked as asked:
            return asked.shapes
        raise AssertionError("an export asks for its exporter")

    def _derived(self, base: Point, points: Sequence[Point]) -> list[SweptRead]:
        """Read ``base``, and those of ``points`` that have its graph."""
        others = {
            axis: next((one for one in points if one[axis] not in (1, size)), None)
            for axis, size in base.items()
            if size > 1
        }
        moved = {axis: other[axis] for axis, other in others.items() if other is not None}
        if not moved:
            return [SweptRead(base, self.read_one(base), is_derived=False)]
        made: list[tuple[SymbolicExport, _Shaped]] = []

        def exporter(model: Any, inputs: Any, **options: Any) -> Any:
            given = shapes_of(inputs)
            shaped = _Shaped(base, given, {
                axis: _lines(axis, base[axis], size, given, self._shapes({**base, axis: size}))
                for axis, size in moved.items()
            })  # fmt: skip
            made.append((symbolic_export(model, inputs, shaped.opened, **options), shaped))
            return made[0][0].at(given)

        exported = self._export(base, exporter=exporter)
        (symbolic, shaped), same = made[0], {axis: base[axis] for axis in base if axis not in moved}
        family = _Family(exported, symbolic, shaped, same, self.kind)
        own = [point for point in points if family.has(point)]
        if base not in own:
            raise CdmppError("torch does not take its own export for that of the sizes it was made at")
        if len(own) == 1:
            return [SweptRead(base, self.read_one(base), is_derived=False)]
        found = [SweptRead(point, family.read(point), is_derived=True) for point in own]
        self._verify(found, base)
        self.families.append(family)
        return found

    def _verify(self, found: Sequence[SweptRead], base: Point) -> None:
        """Raise ``CdmppError`` where the largest point differs from the same one read by itself."""
        last = max(found, key=lambda one: (one.point != base, math.prod(one.point.values())))
        if reason := difference(last.read, self.read_one(last.point)):
            raise CdmppError(f"the export with open sizes differs from that of {_text(last.point)}: {reason}")


def difference(one: EagerNetwork, other: EagerNetwork) -> str:
    """Say what differs between two readings of the same sizes, but for names of calls; empty where nothing does."""
    if len(one.graph.calls) != len(other.graph.calls):
        return f"it has {len(one.graph.calls)} calls for {len(other.graph.calls)}"
    for mine, its in zip(one.graph.calls, other.graph.calls, strict=True):
        if replace(mine, name="") != replace(its, name=""):
            told = (f"{read.operators[call.task_id]}" for read, call in ((one, mine), (other, its)))
            return f"{mine.name} is {' for '.join(told)}"
    plain = replace(one.graph, calls=(), tasks={}, views=0), replace(other.graph, calls=(), tasks={}, views=0)
    fields = ("batch", "warnings", "stand_ins", "elements", "exchanges", "tokens", "cache_bytes")
    if plain[0] != plain[1]:
        return "its inputs or results differ"
    if alive_bytes(one) != alive_bytes(other):
        return "its alive_bytes differ"
    return next((f"its {name} differ" for name in fields if getattr(one, name) != getattr(other, name)), "")


_Line = tuple[int, int]
"""Size of a dimension for each of an axis, and what is added."""


@dataclass(frozen=True)
class _Shaped:
    base: Point
    given: Shapes
    """Shapes of the inputs at ``base``."""
    axes: Mapping[str, Mapping[tuple[int, int], _Line]]
    """Axis -> inputs and their dimensions that grow with it."""

    @property
    def opened(self) -> list[set[int]]:
        every = [place for lines in self.axes.values() for place in lines]
        return [{axis for place, axis in every if place == number} for number in range(len(self.given))]

    def at(self, point: Point) -> Shapes:
        """Shapes of the inputs at another point."""
        shapes = [list(shape) for shape in self.given]
        for name, lines in self.axes.items():
            for (place, axis), (each, more) in lines.items():
                old, new = (each * sizes[name] + more for sizes in (self.base, point))
                shapes[place][axis] = shapes[place][axis] * new // old
        return tuple(map(tuple, shapes))


def _lines(name: str, size: int, other: int, given: Shapes, moved: Shapes) -> dict[tuple[int, int], _Line]:
    """Inputs and dimensions that differ between shapes at two sizes of the axis ``name``, on a line."""
    if [len(shape) for shape in given] != [len(shape) for shape in moved]:
        raise CdmppError(f"{name} changes the number of inputs or of their dimensions")
    found = {}
    for place, (one, two) in enumerate(zip(given, moved, strict=True)):
        for axis, (low, high) in enumerate(zip(one, two, strict=True)):
            if low != high:
                each, rest = divmod(high - low, other - size)
                if rest or each < 0 or low - each * size < 0:
                    raise CdmppError(f"a dimension of its inputs is {low} at {name} {size} and {high} at {other}")
                found[place, axis] = each, low - each * size
    if not found:
        raise AxisError(f"the axis {name} decides nothing: its inputs are the same at {size} and at {other}")
    return found


class AxisError(UsageError):
    """The sizes of an axis play no part."""


@dataclass(frozen=True, eq=False)
class _Family:
    """Points have one graph in common."""

    exported: ExportedRun | ExportedStep
    symbolic: SymbolicExport
    shaped: _Shaped
    same: Mapping[str, int]
    """Axes along which they do not differ, and their sizes."""
    kind: str

    def has(self, point: Point) -> bool:
        """Return whether a point is one of them."""
        return (
            point.keys() == {*self.same, *self.shaped.axes}
            and all(point[axis] == size for axis, size in self.same.items())
            and all(point[axis] > 1 for axis in self.shaped.axes)
            and self.symbolic.holds(self.shaped.at(point))
        )

    def read(self, point: Point, kind: str = "") -> EagerNetwork:
        """Read one of them; ``kind``: another device of the same platform than that of the family."""
        shapes, kind = self.shaped.at(point), kind or self.kind
        if self._run is not None and kind == self.kind:
            return self._run.at(shapes)
        exported = _at(self.exported, self.symbolic.at(shapes), shapes)
        return _read(replace(exported, place=kind) if isinstance(exported, ExportedRun) else exported, kind)

    @cached_property
    def _run(self) -> SizedRun | None:
        if isinstance(self.exported, ExportedStep) or self.exported.trains:
            return None
        return SizedRun(self.exported, self.symbolic, self.shaped.given)


class _Asked(Exception):  # noqa: N818  # an answer, no error
    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.shapes = shapes


def _read(exported: ExportedRun | ExportedStep, kind: str) -> EagerNetwork:
    return exported.read(kind) if isinstance(exported, ExportedStep) else exported.read()


def _at(exported: ExportedRun | ExportedStep, program: Any, shapes: Shapes) -> ExportedRun | ExportedStep:
    if isinstance(exported, ExportedRun):
        return run_at(exported, program, shapes)
    return replace(exported, exported=program, batch=batch_in(shapes))


def _text(point: Point) -> str:
    return ", ".join(f"{name} {size}" for name, size in point.items())

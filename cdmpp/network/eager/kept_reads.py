"""Networks of names that were read before: the same one on a further device, or at other sizes, needs no export."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from threading import Lock
from typing import Any

from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.noted_calls import UnlikeError
from cdmpp.network.eager.read import ExportedRun, export_run
from cdmpp.network.eager.repeated import UnlikeBlocksError
from cdmpp.network.eager.retrace import Retrace
from cdmpp.network.eager.step import ExportedStep, read_blocks
from cdmpp.network.eager.swept import Point, SweptReader
from cdmpp.network.source.checkpoint import read_checkpoints
from cdmpp.network.source.torch_network import other_inputs
from cdmpp.network.workload import Workload
from cdmpp.programs.exported import export
from cdmpp.programs.zoo import read_zoo

MOST = 4
"""So many networks are kept, the latest: each may hold its weights."""
_BASES = 2
"""So many exports of one network: at one example other operators may run than at several."""
AXES: Mapping[str, str] = {"batch": "batch", "seq": "sequence", "past": "past"}
"""Name of an axis -> the field of a ``Workload`` that it sets."""


class KeptReads:
    """The latest networks that were read, with their exports.

    Only those of shipped names are kept: a file may change, and so may a module. The first question exports a network
    at its sizes. At other ones its Python runs again, without an exporter; where it does something else there, and
    neither size is 1, it is exported with open sizes, as a sweep does, and what has the same graph follows from that.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._exports = OrderedDict[Any, ExportedRun | ExportedStep]()
        self._sized = OrderedDict[Any, _Sized]()
        self._bases = OrderedDict[Any, list[_Base]]()
        """The latest exports of each network, from which others follow."""
        self._lock = Lock()

    def read(self, workload: Workload, place: str) -> EagerNetwork:
        """Read a run or a training step; arguments and errors as of ``read_run`` and ``read_step``."""
        if not _can_be_kept(workload):
            return _read(workload, place)[1]
        with self._lock:
            return self._known(workload, place)

    def _known(self, workload: Workload, place: str) -> EagerNetwork:
        kind, key, point = "cpu" if place == "cpu" else "gpu", _key(workload), _point_of(workload)
        own = kind, key, tuple(point.items())
        if (known := self._exports.get(own)) is not None:
            self._exports.move_to_end(own)
            with suppress(UnlikeBlocksError):  # few blocks may say the rest on one GPU and not on another
                return replace(known, place=place).read() if isinstance(known, ExportedRun) else known.read(place)
        sized = None
        if workload.mode == "inference":
            sized = self._sized.pop((kind, key), None) or _Sized(workload, place)
            self._sized[kind, key] = sized
            _drop_oldest(self._sized)
        if sized is not None and (run := self._again(workload, (kind, key))) is not None:
            self._keep(own, run)
            return replace(run, place=place).read()
        if sized is not None and (found := sized.read(point, place)) is not None:
            return found
        exporter = _Noting()
        exported, read = _read(workload, place, exporter)
        self._keep(own, exported)
        if sized is not None and isinstance(exported, ExportedRun):
            sized.before = point
            bases = self._bases.setdefault((kind, key), [])
            bases[:] = [_Base(workload, exported, exporter), *bases[: _BASES - 1]]
            _drop_oldest(self._bases)
        return read

    def _again(self, workload: Workload, key: Any) -> ExportedRun | None:
        """Return the run of a network that was exported at other sizes; None where it needs an export of its own.

        ``CdmppError``: the network has no inputs of these sizes.
        """
        if key not in self._bases:
            return None
        self._bases.move_to_end(key)
        return next((run for base in self._bases[key] if (run := base.at(workload)) is not None), None)

    def _keep(self, key: Any, exported: ExportedRun | ExportedStep) -> None:
        self._exports[key] = exported
        _drop_oldest(self._exports)


@dataclass(eq=False)
class _Noting:
    """It exports, and keeps what it was given."""

    model: Any = None
    inputs: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, model: Any, inputs: tuple[Any, ...], **options: Any) -> Any:
        self.model, self.inputs, self.options = model, inputs, options
        return export(model, inputs, **options)


@dataclass(frozen=True, eq=False)
class _Base:
    """A network was exported at these sizes."""

    workload: Workload
    run: ExportedRun
    exporter: _Noting

    def at(self, workload: Workload) -> ExportedRun | None:
        """Return the run at other sizes; None where it has to be exported. ``CdmppError``: it has no such inputs."""
        if self._retrace is None:
            return None
        if (inputs := other_inputs(self.run.network, self.workload, workload)) is None:
            return None
        with suppress(UnlikeError):
            return self._retrace.at(inputs)
        return None

    @cached_property
    def _retrace(self) -> Retrace | None:
        with suppress(UnlikeError):
            return Retrace(self.run, self.exporter.model, self.exporter.inputs, self.exporter.options)
        return None


class _Sized:
    """One network at the sizes that were asked for."""

    def __init__(self, workload: Workload, place: str) -> None:
        self.reader = SweptReader(place, lambda point: replace(workload, **_fields(point)))
        self.before: Point | None = None
        self.possible: list[Point] = []
        """Sizes that the network has; it has those that are no larger, too."""
        self.can_derive = True

    def read(self, point: Point, place: str) -> EagerNetwork | None:
        """Read a point from an export with open sizes; None where it needs one of its own.

        ``CdmppError``: the network has no inputs of these sizes.
        """
        if not any(other.keys() == point.keys() and all(point[axis] <= other[axis] for axis in point)
                   for other in self.possible):  # fmt: skip
            self.reader.check(point)  # a table of positions may be too short, of which an export says nothing
            self.possible.append(point)
        if (found := self.reader.derived(point, place)) is not None:
            return found
        before = self.before
        if before is None or before.keys() != point.keys() or not self.can_derive:
            return None
        if not any(size != before[axis] and min(size, before[axis]) > 1 for axis, size in point.items()):
            return None  # no axis can be open between them
        self.reader.kind = place
        reads = {tuple(one.point.items()): one for one in self.reader.read([before, point])}
        self.can_derive = not self.reader.reasons
        own = reads.get(tuple(point.items()))  # none where the network cannot have these sizes
        return None if own is None else own.read


@cache
def kept_reads() -> KeptReads:
    """Return those of this process."""
    return KeptReads()


def _can_be_kept(workload: Workload) -> bool:
    name = workload.network
    if not isinstance(name, str) or workload.target is not None or callable(workload.loss):
        return False
    is_shipped = name.startswith("torchvision:") or name.removeprefix("zoo:") in _zoo()
    return is_shipped or (name.startswith("hf:") and name.removeprefix("hf:") in _checkpoints())


@cache
def _zoo() -> frozenset[str]:
    return frozenset(read_zoo())


@cache
def _checkpoints() -> frozenset[str]:
    names = read_checkpoints()
    return frozenset(names) | {name.split("/")[-1] for name in names}


def _key(workload: Workload) -> Any:
    """All of a workload but its sizes, and what torch is told of all modules."""
    import torch

    sizes = (*AXES.values(), "inputs")
    told = (getattr(workload, one.name) for one in fields(workload) if one.name not in sizes)
    shapes = tuple((name, tuple(shape)) for name, shape in (workload.inputs or {}).items())
    return *told, shapes, torch.get_default_dtype()


def _point_of(workload: Workload) -> dict[str, int]:
    sizes = ((axis, getattr(workload, field)) for axis, field in AXES.items())
    return {axis: size for axis, size in sizes if size is not None}


def _fields(point: Point) -> dict[str, Any]:
    return {AXES[axis]: size for axis, size in point.items()}


def _read(
    workload: Workload, place: str, exporter: Callable[..., Any] = export
) -> tuple[ExportedRun | ExportedStep, EagerNetwork]:
    if workload.mode == "training_step":
        return read_blocks(workload, place)
    exported = export_run(workload, place, exporter)
    return exported, exported.read()


def _drop_oldest(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > MOST:
        kept.popitem(last=False)

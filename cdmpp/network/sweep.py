"""Sweep: one network at many sizes, such as batches and numbers of tokens, read once where that can be."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.axes import checked_points, workload_at
from cdmpp.network.compose import compose
from cdmpp.network.eager.device_precision import workload_on
from cdmpp.network.eager.launch import launched_briefly
from cdmpp.network.eager.price import priced_by, prices_of
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.swept import Point, SweptReader
from cdmpp.network.predict import predict_network, predict_step
from cdmpp.network.prediction import NetworkPrediction, best_level
from cdmpp.network.runtime import Runtime
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.workload import Workload
from cdmpp.platform.files import plain
from cdmpp.platform.limits import checked
from cdmpp.platform.progress import shown
from cdmpp.programs.exported import without_collector


@dataclass(frozen=True)
class RefusedPoint:
    """The network has no run of these sizes."""

    sizes: Mapping[str, int]
    """Axis -> size."""
    reason: str


@dataclass(frozen=True)
class SweptPoint:
    """This is the answer at one choice of the sizes."""

    sizes: Mapping[str, int]
    """Axis -> size."""
    latency_s: float
    intervals: Mapping[float, tuple[float, float]]
    batch: int
    tokens: int | None
    """Tokens of all examples; None where it is not known that the network reads tokens."""
    peak_bytes: int
    phase_s: Mapping[str, float]
    """Phase of a training step -> its seconds; else empty."""
    warnings: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """Return the numbers of this point, units in the names; None where there are none."""
        level = best_level(self.intervals)
        low, high = self.intervals[level] if level is not None else (None, None)
        return {
            **self.sizes,
            "latency_s": self.latency_s,
            "interval_level": level,
            "interval_low_s": low,
            "interval_high_s": high,
            "samples_per_s": self.batch / self.latency_s if self.latency_s else None,
            "tokens_per_s": self.tokens / self.latency_s if self.tokens and self.latency_s else None,
            "peak_bytes": self.peak_bytes,
            **{f"{phase}_s": seconds for phase, seconds in self.phase_s.items()},
            "warnings": list(self.warnings),
            "refused": None,
        }


@dataclass(frozen=True)
class Sweep:
    """The points are all combinations of the sizes, the last axis the fastest."""

    network: str
    device: str
    model: str
    schedule: str
    axes: Mapping[str, tuple[int, ...]]
    points: tuple[SweptPoint, ...]
    notes: tuple[str, ...] = ()
    """Why points were read one by one, a sentence each."""
    refused: tuple[RefusedPoint, ...] = ()
    """Sizes that the network cannot have, and why."""

    def table(self) -> list[dict[str, Any]]:
        """Return a row a point; units are in the names of the keys. A refused one has its reason and no numbers."""
        rows = {_key(point.sizes): point.row() for point in self.points}
        numbers = dict.fromkeys(key for row in rows.values() for key in row)
        for one in self.refused:
            blank: dict[str, Any] = dict.fromkeys(numbers)
            rows[_key(one.sizes)] = {**blank, "warnings": [], "refused": one.reason, **one.sizes}
        sizes = itertools.product(*self.axes.values())
        every = (_key(dict(zip(self.axes, some, strict=True))) for some in sizes)
        return [rows[key] for key in every if key in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON takes them."""
        names = ("network", "device", "model", "schedule")
        told = {name: getattr(self, name) for name in names}
        axes = {name: list(sizes) for name, sizes in self.axes.items()}
        return plain({**told, "axes": axes, "notes": list(self.notes), "points": self.table()})


@checked()
def sweep_network(
    workload: Workload,
    axes: Mapping[str, Sequence[int]],
    device: str | Device,
    runtime: Runtime[Any],
    progress: bool = True,
) -> Sweep:
    """Predict one workload at all combinations of sizes.

    PyTorch's own kernels are read once for all sizes, where the network runs the same operators at them, and priced in
    one prediction. Programs of TVM are made for each point.

    Args:
        workload: the network and how it runs; its mode decides what a point is.
        axes: name of an axis, as of ``axes.checked_points``, -> its sizes, each once.
        device: name of a device, or one described in Python.
        runtime: what runs the network.
        progress: whether bars are shown on stderr.

    Raises:
        UsageError: no such axis, sizes that no run can have, or more than ``axes.MOST_POINTS`` points.
        CdmppError: as of ``predict_network``, at all of the points; of some, they are refused and the others answered.
    """
    points = checked_points(workload, axes)
    described = devices.get(device) if isinstance(device, str) else device
    workloads, refused = dict[_Key, Workload](), dict[_Key, CdmppError]()
    for point in points:
        try:
            workloads[_key(point)] = workload_at(workload, point)
        except UsageError as error:  # what no network can be asked for, before one is read
            refused[_key(point)] = error
    left, notes = [point for point in points if _key(point) in workloads], tuple[str, ...]()
    found: _Found = {}
    if left:
        if isinstance(runtime, EagerRuntime):
            found, notes = _eager(left, workloads, described, runtime, refused)
        else:
            found = _each(left, workloads, described, runtime, progress, refused)
    if not found:
        raise next(iter(refused.values()))
    first = next(iter(found.values()))
    made = first.prediction if isinstance(first, StepPrediction) else first
    return Sweep(
        made.network,
        described.name,
        made.model,
        made.schedule,
        {name: tuple(sizes) for name, sizes in axes.items()},
        tuple(_point(point, found[key], workloads[key]) for point in points if (key := _key(point)) in found),
        notes,
        tuple(RefusedPoint(point, str(refused[key])) for point in points if (key := _key(point)) in refused),
    )


_Key = tuple[tuple[str, int], ...]
_Found = dict[_Key, NetworkPrediction | StepPrediction]


@without_collector()
def _eager(
    points: Sequence[Point],
    workloads: Mapping[_Key, Workload],
    device: Device,
    runtime: EagerRuntime,
    refused: dict[_Key, CdmppError],
) -> tuple[_Found, tuple[str, ...]]:
    predictor, model = runtime.predictor(device)

    def at(point: Point) -> Workload:
        known = workloads.get(_key(point))
        return workload_on(workload_at(next(iter(workloads.values())), point) if known is None else known, device)[0]

    _, said = workload_on(workloads[_key(points[0])], device)
    reader = SweptReader(device.architecture, at)
    reads = list(reader.read(reader.possible(points)))
    refused.update((_key(point), error) for point, error in reader.refused)
    operators = list(dict.fromkeys(one for swept in reads for one in swept.read.operators.values()))
    prices = dict(zip(operators, prices_of(predictor, operators, device), strict=True)) if operators else {}
    found: _Found = {}
    for swept in reads:
        priced = priced_by(predictor, model, swept.read, device, prices, runtime.host)
        priced = replace(priced, warnings=(*said, *priced.warnings))
        is_step = swept.read.step is not None
        launched = runtime.launch(priced) if is_step else launched_briefly(priced)
        prediction = compose(priced, launched)
        step = swept.read.step
        found[_key(swept.point)] = prediction if step is None else StepPrediction(step, prediction)
    return found, tuple(reader.reasons)


def _each(
    points: Sequence[Point],
    workloads: Mapping[_Key, Workload],
    device: Device,
    runtime: Runtime[Any],
    progress: bool,
    refused: dict[_Key, CdmppError],
) -> _Found:
    def predictions() -> Generator[tuple[_Key, NetworkPrediction | StepPrediction | None]]:
        for point in points:
            workload = workloads[_key(point)]
            predict = predict_step if workload.mode == "training_step" else predict_network
            try:
                yield _key(point), predict(workload, device, runtime, progress=False)
            except CdmppError as error:
                refused[_key(point)] = error
                yield _key(point), None

    every = shown(predictions(), "points", len(points), progress)
    return {key: found for key, found in every if found is not None}


def _key(point: Point) -> _Key:
    return tuple(point.items())


def _point(point: Point, found: NetworkPrediction | StepPrediction, workload: Workload) -> SweptPoint:
    made = found.prediction if isinstance(found, StepPrediction) else found
    tokens = made.tokens
    if tokens is None and workload.sequence is not None:
        tokens = made.batch * workload.sequence
    return SweptPoint(
        point,
        made.latency_s,
        made.intervals,
        made.batch,
        tokens,
        found.step.peak_bytes if isinstance(found, StepPrediction) else made.peak_bytes,
        found.phase_s if isinstance(found, StepPrediction) else {},
        made.warnings,
    )

"""Sweep: one network at many sizes, such as batches and numbers of tokens, read once where that can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import UsageError
from cdmpp.network.compose import compose
from cdmpp.network.eager.device_precision import workload_on
from cdmpp.network.eager.kept_reads import AXES
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
from cdmpp.platform.limits import SIZES, Limits, checked
from cdmpp.platform.progress import shown
from cdmpp.programs.networks import without_collector

_LIMITS = {"batch": SIZES, "seq": SIZES, "past": Limits(0, 2**31)}
MOST_POINTS = 10_000


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
    """Of a training step: phase -> seconds; else empty."""
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

    def table(self) -> list[dict[str, Any]]:
        """Return a row a point; units are in the names of the keys."""
        return [point.row() for point in self.points]

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
        axes: name of an axis, one of ``AXES``, -> its sizes, each once.
        device: name of a device, or one described in Python.
        runtime: what runs the network.
        progress: whether bars are shown on stderr.

    Raises:
        UsageError: no such axis, sizes that no run can have, or more than ``MOST_POINTS`` points.
        CdmppError: as of ``predict_network``, at any of the points.
    """
    points = checked_points(workload, axes)
    described = devices.get(device) if isinstance(device, str) else device

    def at(point: Point) -> Workload:
        fields: dict[str, Any] = {AXES[name]: size for name, size in point.items()}
        return replace(workload, **fields)

    for point in points:
        at(point)  # refuses what no network can be asked for, before one is read
    if isinstance(runtime, EagerRuntime):
        found, notes = _eager(points, at, described, runtime)
    else:
        found, notes = _each(points, at, described, runtime, progress), ()
    first = next(iter(found.values()))
    made = first.prediction if isinstance(first, StepPrediction) else first
    return Sweep(
        made.network,
        described.name,
        made.model,
        made.schedule,
        {name: tuple(sizes) for name, sizes in axes.items()},
        tuple(_point(point, found[_key(point)], at(point)) for point in points),
        notes,
    )


def checked_points(workload: Workload, axes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all points; ``UsageError`` for axes that cannot be swept."""
    if not axes:
        raise UsageError(f"nothing is swept: give the sizes of an axis, one of {', '.join(AXES)}")
    for name, sizes in axes.items():
        if name not in AXES:
            raise UsageError(f"there is no axis {name!r} to sweep: one of {', '.join(AXES)}")
        if not sizes:
            raise UsageError(f"the axis {name} has no sizes: give some, such as {name}=1,2,4")
        for size in sizes:
            _LIMITS[name].fitting(f"a size of {name}", size)
        if (given := getattr(workload, AXES[name])) is not None:
            raise UsageError(f"{name} is {given} and swept, too: leave one of them out")
    if workload.inputs:
        raise UsageError("inputs give shapes, and sizes are swept: leave one of them out")
    if workload.path is None:
        raise UsageError(
            "a module has the sizes of its example inputs: give a name, or file.py:FUNCTION that takes them"
        )
    count = math.prod(len(sizes) for sizes in axes.values())
    if count > MOST_POINTS:
        raise UsageError(f"{count:,} points: take at most {MOST_POINTS:,} in one sweep")
    return [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())]


_Found = dict[tuple[tuple[str, int], ...], NetworkPrediction | StepPrediction]


@without_collector()
def _eager(
    points: Sequence[Point], at: Callable[[Point], Workload], device: Device, runtime: EagerRuntime
) -> tuple[_Found, tuple[str, ...]]:
    predictor, model = runtime.predictor(device)
    _, said = workload_on(at(points[0]), device)
    reader = SweptReader(device.architecture, lambda point: workload_on(at(point), device)[0])
    reader.check({name: max(point[name] for point in points) for name in points[0]})
    reads = list(reader.read(points))
    operators = list(dict.fromkeys(one for swept in reads for one in swept.read.operators.values()))
    prices = dict(zip(operators, prices_of(predictor, operators, device), strict=True))
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
    points: Sequence[Point], at: Callable[[Point], Workload], device: Device, runtime: Runtime[Any], progress: bool
) -> _Found:
    def predictions() -> Generator[tuple[Point, NetworkPrediction | StepPrediction]]:
        for point in points:
            workload = at(point)
            predict = predict_step if workload.mode == "training_step" else predict_network
            yield point, predict(workload, device, runtime, progress=False)

    return {_key(point): found for point, found in shown(predictions(), "points", len(points), progress)}


def _key(point: Point) -> tuple[tuple[str, int], ...]:
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

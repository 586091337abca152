"""Predicted kernels as a source: any network of PyTorch, on any device, at any micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.compose import flag_warnings
from cdmpp.network.eager.batches import BYTES, SizedStep, TwoReadings, sized
from cdmpp.network.eager.device_precision import workload_on
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.host import dispatches_s
from cdmpp.network.eager.launch import host_warnings, started_s
from cdmpp.network.eager.like_nodes import node_of
from cdmpp.network.eager.price import priced_by, prices_of
from cdmpp.network.eager.rebatched import BATCH
from cdmpp.network.eager.repeated import UnlikeBlocksError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.single_price import Price, as_stand_in
from cdmpp.network.eager.step import ExportedStep, export_step
from cdmpp.network.graph import Call
from cdmpp.network.precision import Precision
from cdmpp.network.prediction import LEVEL
from cdmpp.network.source.blocks import FEW
from cdmpp.network.source.user_code import may_take
from cdmpp.network.training_step import TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.operators.operator import EagerOperator
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.device_copies import copies_on
from cdmpp.plans.sources.source import SPLITS, OpExchange, RankWork, StepSource, StepTimes, split_of
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.platform.limits import SIZES
from cdmpp.steps.derived import derived
from cdmpp.steps.from_prediction import gradients_of, modules_of, op_of
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import OperatorStrategy, Strategy

_Split = tuple[tuple[OperatorStrategy, int], ...]
"""Strategies that divide operators with their ranks, in the order of ``SPLITS``."""
_WHOLE: _Split = ()
"""Nothing is divided."""


@dataclass(frozen=True)
class _Timed:
    """Times of the calls of a step."""

    latencies_s: NDArray[np.float64]
    gaps_s: NDArray[np.float64]
    """Pause after each."""
    start_s: float
    """The first one begins."""
    whole_s: float
    busy_s: float
    low: float
    high: float
    dispatch_s: tuple[float, ...]


class PredictedSource(StepSource):
    """Kernels of PyTorch's own runtime, priced by a learned model.

    The step is read at two batches, and sizes of operators follow for all others. One example, whose tensors may have
    other layouts, is read by itself, and so is each batch of a step that is no such thing. Networks of a name are
    exported once for all batches. Of a network of equal blocks a few are read. What a work says is what
    ``predict_step`` says of the same batch.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        runtime: EagerRuntime | None = None,
        like: PredictedSource | None = None,
        few_blocks: bool = True,
    ) -> None:
        """Read nothing yet.

        Args:
            workload: network, loss and optimizer; its batch plays no part.
            device: of each rank.
            runtime: with the model that prices kernels; None: the default one of the device.
            like: source of the same workload on another device, whose exports are used where they are alike.
            few_blocks: read a few of the blocks of a network in which all are alike, to the same end; False: read all.

        Raises:
            CdmppError: no model for the device; a function of a file that takes no batch.
        """
        _check_batches(workload)
        workload, self._said = workload_on(workload, device)
        self.workload, self.device = replace(workload, mode="training_step"), device
        runtime = runtime or EagerRuntime()
        (self.predictor, self.model), self.host = runtime.predictor(device), runtime.host
        self._exported = dict[int, ExportedStep]()
        self._read = dict[tuple[int, _Split], EagerNetwork]()
        self._pairs = dict[_Split, TwoReadings]()
        self._steps = dict[tuple[int, _Split], SizedStep]()
        self._prices = dict[EagerOperator, Price]()
        self._reasons = dict[_Split, str]()
        self._works = dict[tuple[int, _Split], RankWork]()
        self._times = dict[tuple[int, _Split], _Timed]()
        self._ranks = dict[int, tuple[TrainingStep, RankGraph]]()
        self._warnings: tuple[str, ...] | None = None
        self._few = list(FEW if few_blocks else ())
        if like is not None and (like.device.kind, like.workload.precision) == (device.kind, self.workload.precision):
            self._exported, self._few = like._exported, like._few
            if like.device.architecture == device.architecture:
                self._read = like._read

    def prepare(
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Price the operators of all combinations in one prediction; ``work`` refuses those that cannot be."""
        batches, splits = tuple(batches), dict.fromkeys(_split(one, strategies) for one in degrees)
        for batch in batches:
            SIZES.fitting("the batch of a rank", batch)
        steps = [self._step(batch, split) for split in splits if not self._refused(split) for batch in batches]
        wanted = dict.fromkeys(operator for step in steps for operator in step.operators)
        if new := [operator for operator in wanted if operator not in self._prices]:
            self._prices.update(zip(new, prices_of(self.predictor, new, self.device), strict=True))

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank; the first one of a batch reads and prices it, if ``prepare`` did not."""
        split = _split(degrees, strategies)
        if why := self._refused(split):
            raise CdmppError(why)
        if (batch, split) not in self._works:
            self.prepare((batch,), (degrees,), strategies)
            self._works[batch, split] = self._work(batch, split)
        return self._works[batch, split]

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes | None:
        """Return the times of ``work`` without its ops; ``CdmppError`` as of it."""
        split = _split(degrees, strategies)
        if why := self._refused(split):
            raise CdmppError(why)
        if (batch, split) not in self._steps:
            self.prepare((batch,), (degrees,), strategies)
        sized = self._steps[batch, split]
        timed = self._timed(batch, split)
        exchanges = tuple((one.kind, one.degree, one.after) for one in sized.exchanges)
        return StepTimes(
            (sized.step.order, exchanges),
            timed.latencies_s + timed.gaps_s,
            timed.gaps_s,
            timed.start_s,
            np.array([one.bytes for one in sized.exchanges], np.int64),
            timed.low,
            timed.high,
            tuple(one.kind.op_class for one in sized.operators),
        )

    def limits(self) -> Mapping[str, int]:
        """Return the most stages (forward operators that read parameters), and the most ranks that divide operators."""
        return self._limits

    @cached_property
    def _limits(self) -> Mapping[str, int]:
        step = self._at(self._low, _WHOLE).step
        assert step is not None
        numbers = {one.number for one in (*step.parameters, *step.frozen)}
        calls = [one.call for one in step.calls if one.phase == "forward"]
        layers = {node_of(one) for one in calls if numbers & {number for number, _ in one.resident}}
        return {"pp": max(1, len(layers)), **{name: self._limit(name) for name in SPLITS}}

    def _limit(self, degree: str) -> int:
        return _DIVIDING[degree]().limit(self._export(self._low).exported)[0]

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:
        """Return why operators cannot be divided so, as ``work`` says it; empty for stages, and where they can."""
        if degree not in SPLITS:
            return ""
        return self._refused(_split(ParallelDegrees(**{degree: ranks}), strategies))

    def _refused(self, split: _Split) -> str:
        """Why operators cannot be divided so; empty if they can."""
        if split not in self._reasons:
            self._reasons[split] = ""
            try:
                self._at(self._low, split)
            except CdmppError as error:
                if split == _WHOLE:
                    raise
                self._reasons[split] = str(error)
        return self._reasons[split]

    def _step(self, batch: int, split: _Split) -> SizedStep:
        if (batch, split) not in self._steps:
            found = None
            if batch > 1:
                found = sized(self._at(batch, split)) if batch == self._low else self._readings(split).at(batch)
            self._steps[batch, split] = found or sized(self._at(batch, split))
        return self._steps[batch, split]

    def _readings(self, split: _Split) -> TwoReadings:
        if split not in self._pairs:
            self._pairs[split] = TwoReadings(self._at(self._low, split), self._at(self._low + 1, split))
        return self._pairs[split]

    def _at(self, batch: int, split: _Split) -> EagerNetwork:
        if (batch, split) not in self._read:
            found = None
            while found is None:
                try:
                    found = self._divided(batch, split)
                except UnlikeBlocksError:  # then more of them are read, from now on
                    self._read_more()
            self._read[batch, split] = found
        return self._read[batch, split]

    def _divided(self, batch: int, split: _Split) -> EagerNetwork:
        step = self._export(batch)
        exported = divided = step.exported
        for strategy, ranks in split:
            divided = strategy.divide(divided, ranks).along(strategy.degrees[0], divided, strategy.replicates)
        return step.read(self.device.architecture, None if divided is exported else divided)

    @cached_property
    def _low(self) -> int:
        """The smaller batch that is read: ``BATCH`` where the step at that batch says all others, else 2."""
        if self.workload.path is None or ".py:" in str(self.workload.network):  # has example inputs of its own
            return 2
        try:
            step = self._exported.get(BATCH) or self._export_at(BATCH)
        except CdmppError:  # perhaps of too little memory for so many; else the export at 2 says the same
            return 2
        more = step.at(BATCH + 1)
        if more is None:
            return 2
        self._exported |= {BATCH: step, BATCH + 1: more}
        return BATCH

    def _export(self, batch: int) -> ExportedStep:
        if batch not in self._exported:
            found = self._export(BATCH).at(batch) if self._low == BATCH and batch != BATCH else None
            self._exported[batch] = found or self._export_at(batch)
        return self._exported[batch]

    def _export_at(self, batch: int) -> ExportedStep:
        workload = at(self.workload, batch)
        if self._few:
            try:
                return export_step(workload, self.device.kind, few_blocks=self._few[0])
            except CdmppError:  # perhaps as its loss reads all blocks; else the export of all says the same
                self._few.clear()
        return export_step(workload, self.device.kind)

    def _read_more(self) -> None:
        del self._few[0]
        self._exported.clear()

    def _work(self, batch: int, split: _Split) -> RankWork:
        sized, timed = self._steps[batch, split], self._timed(batch, split)
        step, rank = sized.step, self._rank(sized, timed)
        ops = rank.ops
        exchanges = tuple(
            OpExchange(
                one.kind,
                one.bytes,
                one.degree,
                one.after,
                one.before,
                one.name,
                one.shift,
                one.span,
                one.follows,
                ops[one.before[0]].phase == "update" if one.before else False,
                one.is_ring,
            )  # fmt: skip
            for one in sized.exchanges
        )
        warnings = (*step.warnings, *self._told(), *host_warnings(timed.whole_s, timed.busy_s))
        precision = self.workload.precision
        assert isinstance(precision, Precision)
        return RankWork(
            rank, exchanges, sized.memory, timed.low, timed.high, tuple(dict.fromkeys(warnings)),
            copies=copies_on(self.device, precision), is_cast=bool(precision.sharded), dispatch_s=timed.dispatch_s,
            is_clipped=self.workload.update.clip_norm is not None, update=self.workload.update,
        )  # fmt: skip

    def _rank(self, sized: SizedStep, timed: _Timed) -> RankGraph:
        """The ops of a step; those of another batch differ in seconds and bytes only."""
        step, seconds, gaps_s = sized.step, timed.latencies_s.tolist(), timed.gaps_s.tolist()
        kinds = [one.kind.op_class for one in sized.operators]
        if id(step) not in self._ranks:
            ops = tuple(map(op_of, sized.calls, seconds, gaps_s, kinds))
            rank = RankGraph(0, ops, gradients_of(step), modules_of(step), timed.start_s, buffers=step.buffers)
            self._ranks[id(step)] = step, rank
            return rank
        known, bytes_of = self._ranks[id(step)][1], sized.bytes_of or [_bytes_in(one.call) for one in step.calls]
        each = zip(known.ops, seconds, gaps_s, kinds, bytes_of, strict=True)
        ops = tuple([
            derived(op, duration_s=taken_s, gap_s=gap_s, kind=kind, **own) for op, taken_s, gap_s, kind, own in each
        ])  # fmt: skip
        return derived(known, ops=ops, start_s=timed.start_s)

    def _timed(self, batch: int, split: _Split) -> _Timed:
        """Return the times of a step that is read and priced."""
        if (batch, split) not in self._times:
            self._times[batch, split] = self._found_times(batch, split)
        return self._times[batch, split]

    def _found_times(self, batch: int, split: _Split) -> _Timed:
        sized = self._steps[batch, split]
        prices = [self._prices[operator] for operator in sized.operators]
        read = self._read.get((batch, split)) or self._at(self._low, split)  # one example may run other operators
        stand_in_for = read.stand_in_for
        prices = [as_stand_in(one) if stand_in_for(place) else one for place, one in enumerate(prices)]
        host = None if self.device.kind == "cpu" else self.host
        dispatch_s = dispatches_s([one.call for one in sized.step.calls], prices, host, True, sized.step)
        latencies_s = [one.latency_s for one in prices]
        starts = started_s(latencies_s, dispatch_s)
        ends = [start + latency_s for start, latency_s in zip(starts, latencies_s, strict=True)]
        gaps_s = np.array([*(after - end for after, end in zip(starts[1:], ends, strict=False)), 0.0])
        whole_s, busy_s = ends[-1], sum(latencies_s)
        low, high = 1.0, 1.0
        if all(LEVEL in one.intervals for one in prices):
            low, high = (
                (whole_s - busy_s + sum(p.intervals[LEVEL][side] for p in prices)) / whole_s for side in (0, 1)
            )
        return _Timed(
            np.array(latencies_s), gaps_s, starts[0], whole_s, busy_s, min(low, 1.0), max(high, 1.0), tuple(dispatch_s)
        )

    def _told(self) -> tuple[str, ...]:
        """Warnings about the kernels of the whole network, at the smaller batch."""
        if self._warnings is None:
            read = self._at(self._low, _WHOLE)
            priced = priced_by(self.predictor, self.model, read, self.device)
            self._warnings = (*self._said, *priced.warnings, *flag_warnings(priced.kernels))
        return self._warnings


def _bytes_in(call: Call) -> dict[str, int | None]:
    return {name: getattr(call, name) for name in BYTES}


_DIVIDING = {kind.degrees[0]: kind for kind in STRATEGIES if issubclass(kind, OperatorStrategy)}
"""Degree -> the strategy that divides operators along it."""


def _split(degrees: ParallelDegrees, strategies: Sequence[Strategy]) -> _Split:
    """Return how operators are divided."""
    given, found = {degree: one for one in strategies for degree in one.degrees}, list[tuple[OperatorStrategy, int]]()
    for degree, ranks in split_of(degrees):
        one = given.get(degree) or _DIVIDING[degree]()
        assert isinstance(one, OperatorStrategy)
        found.append((one, ranks))
    return tuple(found)


def _check_batches(workload: Workload) -> None:
    """``UsageError`` where the text of a user's file says that its network has one batch only; the file is not run."""
    file, _, function = str(workload.network).rpartition(":") if workload.path is not None else ("", "", "")
    if file.endswith(".py") and not workload.inputs and not may_take(Path(file).expanduser(), function, "batch"):
        raise UsageError(
            f"{file}:{function} has no parameter batch, and plans need the network at micro-batches of several sizes: "
            f"write `def {function}(batch=...)` and make the example inputs of that many examples"
        )


def at(workload: Workload, batch: int) -> Workload:
    """Return a workload at another batch: the first axis of its inputs is as long.

    Example inputs of a module are repeated or cut along their first axis, where it is that of the first of them.
    """
    if workload.inputs:
        inputs = {name: (batch, *tuple(shape)[1:]) for name, shape in workload.inputs.items()}
        return replace(workload, inputs=inputs, batch=None)
    if workload.example_inputs is None:
        return replace(workload, batch=batch)
    import torch
    from torch.utils import _pytree

    flat = [one for one in _pytree.tree_leaves(workload.example_inputs) if isinstance(one, torch.Tensor) and one.dim()]
    own = flat[0].shape[0] if flat else 0

    def resized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != own:
            return value
        return value.index_select(0, torch.arange(batch, device=value.device) % own)

    inputs, target = _pytree.tree_map(resized, (workload.example_inputs, workload.target))
    return replace(workload, example_inputs=inputs, target=target, batch=None)

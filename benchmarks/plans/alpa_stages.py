"""Steps of Alpa's pipelines: each stage has GPUs of its own number, uses them in its own way, and holds what fits.

Kernels, exchanges and sizes are those of the library: the network at the size of a stage's share of a micro-batch, or
with operators divided by its GPUs. Each layer runs its forward pass again before its backward pass. No stage computes
while it exchanges or sends: Alpa's runtime does one after the other (Zhuang et al., MLSys'23, add overlap).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from benchmarks.plans.alpa_rows import MEMORY_BYTES
from benchmarks.plans.alpa_solutions import AUTO, DATA, SPLIT, Stage
from cdmpp.collectives.topology import Topology
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import RankWork, StepSource

_WAYS = {DATA: ("data", "zero2", "fsdp"), SPLIT: ("split",), AUTO: ("data", "zero2", "fsdp", "split")}
_COPIES = {"data": (3.0, 0.0), "zero2": (2.0, 1.0), "fsdp": (0.0, 3.0), "split": (0.0, 3.0)}
"""Way -> copies of a stage's parameters that a GPU holds whole, and divided: weights, gradients, momentum."""


@dataclass(frozen=True)
class Layers:
    """What one GPU does for one micro-batch, layer by layer; all arrays are (layers,)."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    exchange_s: np.ndarray
    """Divided operators take these, with those of the second forward pass."""
    saved_bytes: np.ndarray
    """Kept between the passes of one layer."""


@dataclass(frozen=True)
class Cost:
    """What a stage takes."""

    slot_s: float
    """Seconds of one micro-batch: passes and what its GPUs exchange."""
    once_s: float
    """Seconds once a step: gradients and update."""
    held_bytes: float
    """By each of its GPUs."""


class Stages:
    """Steps of one network on one cluster, at one micro-batch."""

    def __init__(self, source: StepSource, topology: Topology, micro_batch: int, many: int) -> None:
        """Price nothing yet.

        Args:
            source: kernels of the network, whose modules ``0`` to ``layers + 1`` are a stem, the layers and a head.
            topology: GPUs, eight a node; stages fill them in order.
            micro_batch: examples.
            many: micro-batches of a step.
        """
        self._source, self._topology, self._batch, self._many = source, topology, micro_batch, many
        self._layers = dict[tuple[str, int], Layers]()
        self._costs = dict[tuple[Stage, int], Cost]()

    def step_s(self, stages: Sequence[Stage]) -> float:
        """Return the seconds of a step; messages between stages take part in their slots."""
        first = np.cumsum([0, *(one.gpus for one in stages)])
        costs = [self.cost(one, len(stages) - place) for place, one in enumerate(stages)]
        sends = [self._send_s(a, b, int(first[i])) for i, (a, b) in enumerate(zip(stages, stages[1:], strict=False))]
        slots = [
            cost.slot_s + before + after
            for cost, before, after in zip(costs, [0.0, *sends], [*sends, 0.0], strict=True)
        ]
        return (self._many - 1) * max(slots) + sum(slots) - sum(sends) + max(one.once_s for one in costs)

    def words(self, stages: Sequence[Stage]) -> str:
        """Say what the stages are, for a reader."""
        sizes = "+".join(f"{one.end - one.first}/{one.gpus}" for one in stages)
        return f"blocks/GPUs {sizes}" if len(stages) > 1 else f"no stages, {stages[0].gpus} GPUs"

    def cost(self, stage: Stage, later: int) -> Cost:
        """Return the cheapest way that ``stage.how`` allows and that fits, or else the one that holds least.

        ``later`` counts the stages from this one to the last: so many micro-batches wait for their backward pass.
        """
        if (stage, later) not in self._costs:
            ways = _WAYS[stage.how] if stage.gpus > 1 else ("data",)
            costs = [self._cost(stage, way, min(later, self._many)) for way in ways if self._allows(stage, way)]
            self._costs[stage, later] = min(
                costs, key=lambda one: (max(one.held_bytes, MEMORY_BYTES), one.slot_s * self._many + one.once_s)
            )
        return self._costs[stage, later]

    def _allows(self, stage: Stage, way: str) -> bool:
        return way == "split" or self._batch % stage.gpus == 0

    def _cost(self, stage: Stage, way: str, waiting: int) -> Cost:
        gpus, part = stage.gpus, slice(stage.first, stage.end)
        layers = self._at("split" if way == "split" else "data", gpus)
        n_bytes = float(self._parameters[part].sum())
        slot_s = float((2 * layers.forward_s + layers.backward_s + layers.exchange_s)[part].sum())
        update_s = self._update_s * n_bytes / self._parameters.sum()
        whole, divided = _COPIES[way]
        once_s = update_s * (1.0 if way == "data" else 1 / gpus)
        if gpus > 1 and way == "fsdp":
            slot_s += self._exchange_s("all_gather", n_bytes, gpus) * 2 + self._exchange_s(
                "reduce_scatter", n_bytes, gpus
            )
        elif gpus > 1 and way != "split":
            once_s += self._exchange_s("all_reduce", n_bytes, gpus)
        share = self._batch / gpus
        inputs = float(self._inputs[part].sum()) * (share if way != "split" else self._batch)
        largest = float(self._parameters[part].max()) * (2.0 if way == "fsdp" else 1.0 if way != "split" else 1 / gpus)
        held = n_bytes * (whole + divided / gpus) + largest + inputs * waiting + float(layers.saved_bytes[part].max())
        return Cost(slot_s, once_s, held)

    def _exchange_s(self, kind: str, n_bytes: float, gpus: int) -> float:
        return float(self._topology.latency_s(kind, np.array([n_bytes]), range(gpus))[0])

    def _send_s(self, sender: Stage, receiver: Stage, first: int) -> float:
        """Seconds of one micro-batch's tensor from a stage to the next one: pairs of GPUs share it."""
        pairs = min(sender.gpus, receiver.gpus)
        n_bytes = float(self._inputs[receiver.first]) * self._batch
        ends = first, first + sender.gpus
        if self._topology.node_of(ends[0]) != self._topology.node_of(ends[1]):
            return n_bytes / self._topology.far_rate
        return float(self._topology.latency_s("send_recv", np.array([n_bytes / pairs]), ends)[0])

    def _at(self, way: str, gpus: int) -> Layers:
        """Read the layers of a GPU that has its share of the examples, or of each operator."""
        if (way, gpus) not in self._layers:
            degrees = ParallelDegrees(filter=gpus) if way == "split" and gpus > 1 else ParallelDegrees()
            work = self._source.work(self._batch if way == "split" else self._batch // gpus, degrees)
            self._layers[way, gpus] = self._read(work, gpus)
        return self._layers[way, gpus]

    def _read(self, work: RankWork, gpus: int) -> Layers:
        owners, count = owners_of(work), self.count
        found = {name: np.zeros(count) for name in ("forward", "backward", "exchange", "saved")}
        for op, owner in zip(work.rank.ops, owners, strict=True):
            if op.phase in found:
                found[op.phase][owner] += op.delay_s + op.duration_s + op.gap_s
            if op.phase == "forward":
                found["saved"][owner] += op.output_bytes or 0
        for one in work.exchanges:
            place = max(one.after, 0)
            times = 2 if work.rank.ops[place].phase == "forward" else 1
            found["exchange"][owners[place]] += times * self._exchange_s(one.kind, one.bytes, gpus)
        return Layers(found["forward"], found["backward"], found["exchange"], found["saved"])

    @cached_property
    def _whole(self) -> RankWork:
        return self._source.work(2, ParallelDegrees())

    @cached_property
    def count(self) -> int:
        """Return the number of layers."""
        return max(int(one.name.split(".")[0]) for one in self._whole.rank.modules) - 1

    @cached_property
    def _parameters(self) -> np.ndarray:
        """Bytes of each layer's parameters."""
        found = np.zeros(self.count)
        for one in self._whole.rank.modules:
            found[layer_of(one.name, self.count)] += one.bytes
        return found

    @cached_property
    def _inputs(self) -> np.ndarray:
        """Bytes of one example that enter each layer: the output of the last operator before it."""
        owners, ops, found = owners_of(self._whole), self._whole.rank.ops, np.zeros(self.count)
        for place, owner in enumerate(owners[:-1]):
            if ops[place + 1].phase == "forward" and owners[place + 1] > owner:
                found[owners[place + 1]] = (ops[place].result_bytes or ops[place].output_bytes) / 2
        return found

    @cached_property
    def _update_s(self) -> float:
        return sum(one.duration_s for one in self._whole.rank.ops if one.phase == "update")


def layer_of(module: str, count: int) -> int:
    """Return the number of the layer that holds a module: the stem counts to the first, the head to the last."""
    return min(max(int(module.split(".")[0]) - 1, 0), count - 1)


def owners_of(work: RankWork) -> list[int]:
    """Return the number of the layer of each op: forward passes from one module on, backward passes as what they undo.

    What undoes no operator is with what ran before it.
    """
    count = max(int(one.name.split(".")[0]) for one in work.rank.modules) - 1
    starts = sorted((one.forward[0], layer_of(one.name, count)) for one in work.rank.modules)
    firsts, owners = [first for first, _ in starts], list[int]()
    for place, op in enumerate(work.rank.ops):
        if op.phase == "forward":
            owners.append(starts[max(bisect_right(firsts, place) - 1, 0)][1])
        else:
            owners.append(owners[op.forward] if op.forward is not None else owners[-1])
    return owners


def searched(
    stages: Stages, many: int, gpus: int, how: str, *, cuts: Sequence[int], sizes: Sequence[int], merges: bool = True
) -> tuple[Stage, ...] | None:
    """Find the stages whose step is shortest, without messages between them, as Alpa's search does.

    Args:
        stages: prices them.
        many: micro-batches of a step.
        gpus: of all stages together.
        how: of each stage.
        merges: whether a stage may have what is between more than two cuts.
        cuts: numbers of the layers at which a stage may begin, from 0, and of all layers at the end.
        sizes: GPUs that a stage may have.

    Returns:
        The stages; None where the sizes do not add up to ``gpus``, or no stage fits.
    """
    fronts: dict[tuple[int, int, int], list[_Part]] = {(cuts[-1], gpus, 0): [_Part(0.0, 0.0, ())]}
    for place, end in reversed([*enumerate(cuts)][1:]):
        firsts = cuts[:place] if merges else cuts[place - 1 : place]
        for (at, left, count), parts in list(fronts.items()):
            if at != end:
                continue
            for first, size in product(firsts, (one for one in sizes if one <= left)):
                stage = Stage(first, end, size, how)
                cost = stages.cost(stage, count + 1)
                if cost.held_bytes <= MEMORY_BYTES:
                    key = first, left - size, count + 1
                    longer = [one.with_stage(stage, cost.slot_s) for one in parts]
                    fronts[key] = _best([*fronts.get(key, []), *longer])
    whole = [one for (at, left, _), parts in fronts.items() if at == 0 and left == 0 for one in parts]
    return min(whole, key=lambda one: (many - 1) * one.slot_s + one.sum_s).stages if whole else None


@dataclass(frozen=True)
class _Part:
    """The last stages of a pipeline."""

    slot_s: float
    """Seconds of a micro-batch on the slowest of them."""
    sum_s: float
    stages: tuple[Stage, ...]

    def with_stage(self, stage: Stage, slot_s: float) -> _Part:
        return _Part(max(self.slot_s, slot_s), self.sum_s + slot_s, (stage, *self.stages))


def _best(parts: list[_Part]) -> list[_Part]:
    """Leave out those that another one beats in both times."""
    found = list[_Part]()
    for one in sorted(parts, key=lambda part: (part.slot_s, part.sum_s)):
        if not found or one.sum_s < found[-1].sum_s:
            found.append(one)
    return found

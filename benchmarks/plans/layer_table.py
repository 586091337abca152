"""A table of layers as a source of steps: ParaDL's own assumptions, so that the oracle can be asked its questions.

Layers run one after the other, forward and then backward; a layer that is divided takes its share of the time; nothing
is freed before the end of the step, and each result is held twice, with its gradient. ReLU and batch norm work in
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.candidates import Candidates, candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource, one_split_of
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from cdmpp.steps.strategy import Strategy

_FORWARD = 1 / 3
"""Share of the forward pass in the time of a layer, of which only the sum is known."""
_WHOLE_BUCKET = 2**40
_DIVIDES = {"filter": "filter", "channel": "filter", "spatial": "space"}


@dataclass(frozen=True)
class Layer:
    """One layer, for one example; sizes in items."""

    name: str
    x_items: int
    w_items: int
    y_items: int
    seconds: float
    """Its forward and backward pass take so long."""
    x_shape: tuple[int, ...] = ()
    """Channels, then the lengths of the image."""
    kernel: tuple[int, ...] = ()
    divides: frozenset[str] = frozenset()
    """``filter``: it is divided along filters or channels; ``space``: along the image."""

    @property
    def halo_items(self) -> int:
        """Count the items that a neighbour along the first axis of the image needs, of one example."""
        rows, rest = self.kernel[0] // 2 if self.kernel else 0, self.x_shape[:1] + self.x_shape[2:]
        items = rows
        for length in rest:
            items *= length
        return items

    def shares(self, name: str, ranks: int) -> int:
        """Return how many ranks share it."""
        return ranks if name and _DIVIDES[name] in self.divides else 1


@dataclass(frozen=True)
class LayerTable(StepSource):
    """Layers in their order, and how the authors' tool counts them."""

    layers: tuple[Layer, ...]
    item_bytes: int = 4
    squares: bool = False
    """True if weights are divided twice where they are divided, and once where they are not: what the tool printed of
    memory under filter and channel parallelism."""
    frees: bool = False
    """True if a result lives until its layer's backward pass alone, as in PyTorch; a pipeline needs that."""
    in_place: tuple[str, ...] = ("relu", "bnorm")
    """Layers whose names begin so write over what they read, and hold nothing."""
    sends_all: bool = False
    """True if ranks that hold a part of the weights send all of their gradients: what the tool printed."""

    @property
    def whole_s(self) -> float:
        """Return the seconds of all layers, for one example."""
        return sum(one.seconds for one in self.layers)

    def limits(self) -> Mapping[str, int]:
        """Return the smallest image, the smallest numbers of filters and channels, and the layers with weights."""
        spatial = [one for one in self.layers if "space" in one.divides]
        split = [one for one in self.layers if "filter" in one.divides]
        found = {"pp": sum(one.w_items > 0 for one in self.layers)}
        if spatial:
            found["spatial"] = min(_product(one.x_shape[1:]) for one in spatial)
        if split:
            found["channel"] = min(one.x_shape[0] for one in split[1:])
            found["filter"] = min(one.w_items // max(1, one.x_shape[0] * _product(one.kernel)) for one in split)
        return found

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:  # noqa: ARG002
        """Return the work of one rank: one op a pass and layer, and the exchanges of divided layers."""
        name, ranks = one_split_of(degrees)
        count = len(self.layers)
        ops, exchanges, gradients = list[Op](), list[OpExchange](), list[Gradient]()
        for place, layer in enumerate(self.layers):
            shared = layer.shares(name, ranks)
            kept = 0 if layer.name.startswith(self.in_place) else self._held(batch, layer, shared, name)
            seconds = _FORWARD * batch * layer.seconds / shared
            sent, before = self.item_bytes * batch * layer.y_items, tuple(range(place))[-1:]
            ops.append(Op(layer.name, "forward", seconds, output_bytes=kept, inputs=before, result_bytes=sent))
            exchanges += self._exchanges(batch, layer, place, place + 1, name, shared, forward=True)
        for place, layer in reversed(list(enumerate(self.layers))):
            shared, here = layer.shares(name, ranks), 2 * count - 1 - place
            weights = self._weights(layer, name, ranks)
            seconds = (1 - _FORWARD) * batch * layer.seconds / shared
            ops.append(Op(layer.name, "backward", seconds, inputs=tuple({here - 1, place}), forward=place))
            if layer.w_items:
                sent = self.item_bytes * layer.w_items if self.sends_all else weights
                gradients.append(Gradient(f"{place} {layer.name}", sent, here, readers=(place,)))
            exchanges += self._exchanges(batch, layer, here, here + 1, name, shared, forward=False)
        if not self.frees:
            ops.append(Op("end", "backward", 0.0, inputs=tuple(range(count))))
        held = sum(self._weights(one, name, ranks) for one in self.layers)
        saved = sum(op.output_bytes for op in ops)
        memory = StepMemory(held, held, 0, 0, 0, saved, saved + held)
        return RankWork(RankGraph(0, tuple(ops), tuple(gradients)), tuple(exchanges), memory)

    def _held(self, batch: int, layer: Layer, shared: int, name: str) -> int:
        """Bytes of the input and the output, and of their gradients; only space divides them."""
        items = layer.x_items + layer.y_items
        if name == "spatial":
            items = -(-layer.x_items // shared) - (-layer.y_items // shared)
        return 2 * self.item_bytes * batch * items

    def _weights(self, layer: Layer, name: str, ranks: int) -> int:
        """Bytes of its weights on one rank; space does not divide them."""
        shared = layer.shares(name, ranks) if name != "spatial" else 1
        return self.item_bytes * layer.w_items // (shared * (ranks if self.squares else 1))

    def _exchanges(
        self, batch: int, layer: Layer, after: int, before: int, name: str, shared: int, forward: bool
    ) -> list[OpExchange]:
        if shared == 1:
            return []
        if name == "spatial":
            sent = self.item_bytes * batch * layer.halo_items
            ways = (1, -1) if sent else ()
            return [OpExchange("send_recv", sent, name, after, (before,), f"{layer.name} halo", way) for way in ways]
        gathers = forward == (name == "filter")
        kind = "all_gather" if gathers else "all_reduce"
        return [OpExchange(kind, self.item_bytes * batch * layer.y_items, name, after, (before,), layer.name)]


@cache
def judge(table: LayerTable) -> Judge:
    """Return what judges plans of a table; it keeps what it worked out."""
    return Judge(table)


def columns(split: str, inside: int, replicas: int, batch: int, micro_batches: int = 1) -> Candidates:
    """Return one plan: ``inside`` ranks divide the model along ``split``, a degree, in each of so many replicas.

    As ChainerMN does it: one bucket for all gradients, in which they lie, and which leaves after the backward pass.
    """
    data = STRATEGIES["ddp"](
        bucket_bytes=(_WHOLE_BUCKET,), overlap=False, gradient_as_bucket_view=True, forward_sync_buffers=False
    )
    name = {"": "", "pp": "pipeline"}.get(split, split)
    degrees = (*(("dp_replicate",) if replicas > 1 or not split else ()), *((split,) if split else ()))
    combination = Combination(name or "data", data, (STRATEGIES[name](),) if name else (), degrees)
    every = candidates((combination,), inside * replicas, batch, {}, can_recompute=False)
    wanted = every.micro_batches == micro_batches
    if split:
        wanted &= every.degree(split) == inside
    return every.taken(wanted)


def _product(lengths: tuple[int, ...]) -> int:
    found = 1
    for length in lengths:
        found *= length
    return found

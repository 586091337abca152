"""A table of measured layers as a source: any network that somebody timed layer by layer, PyTorch's or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError, DataError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.memory import Memory
from cdmpp.plans.sources.source import SPLITS, RankWork, StepSource, StepTimes, check_whole
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.strategy import Strategy

_BY_EXAMPLES = ("forward_s", "backward_s", "output_bytes", "saved_bytes", "update_s", "weights_s")


class TableSource(StepSource):
    """Layers that run one after the other, measured at one number of examples or at several.

    Between two measured numbers seconds and bytes are on a line, outside in proportion to the nearest, with a warning.
    """

    of = "measured layers"

    def __init__(self, layers: Sequence[Layer], state_bytes: float = 2.0) -> None:
        """Take the rows of a table.

        Args:
            layers: in the order of the forward pass; all again for each further number of examples.
            state_bytes: that the optimizer keeps for each byte of parameters: 2 for Adam, 1 for momentum, 0 for plain
                SGD.

        Raises:
            DataError: no layers, numbers of examples with other layers, or states below 0.
        """
        if len(on := dict.fromkeys(layer.device for layer in layers)) > 1:
            raise DataError(f"layers of devices {', '.join(one or 'without a name' for one in on)}: take those of one")
        tables = dict[int, list[Layer]]()
        for layer in layers:
            tables.setdefault(layer.examples, []).append(layer)
        if not tables:
            raise DataError("a table without layers: give one or more")
        if not 0 <= state_bytes < float("inf"):
            raise DataError(f"state_bytes is {state_bytes}, expected 0 or more for each byte of parameters")
        self.state_bytes = state_bytes
        self._times = dict[int, StepTimes]()
        self.tables = {examples: tuple(tables[examples]) for examples in sorted(tables)}
        first, *others = ([(one.name, one.parameter_bytes) for one in table] for table in self.tables.values())
        for examples, other in zip(list(self.tables)[1:], others, strict=True):
            if other != first:
                wrong = next((b for a, b in zip(first, other, strict=False) if a != b), None)
                told = f"{len(other)} layers against {len(first)}" if wrong is None else f"{wrong[0]!r} differs"
                raise DataError(f"the table has other layers at {examples} examples than at {min(tables)}: {told}")
        if len({name for name, _ in first}) < len(first):
            names = [name for name, _ in first]
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise DataError(f"the table has layer {twice!r} twice at {min(tables)} examples: give each a name")

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:  # noqa: ARG002
        """Return the layers at so many examples; ``CdmppError``: a split, since a table tells nothing of its parts."""
        _check(batch, degrees)
        (rank,) = graph_of_layers(self.layers(batch)).ranks
        return RankWork(rank, (), self._memory(rank), warnings=self._warnings(batch))

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes | None:  # noqa: ARG002
        """Return the times from those of the measured numbers of examples, where these run the same ops."""
        _check(batch, degrees)
        for examples in self.tables:
            if examples not in self._times:
                self._times[examples] = StepTimes.of(self.work(examples, degrees))
        known = sorted(self._times)
        first, *others = (self._times[examples] for examples in known)
        if batch in self._times or any(one.ops != first.ops for one in others):
            return self._times.get(batch)
        if not known[0] < batch < known[-1]:
            nearest = self._nearest(batch)
            one = self._times[nearest]
            return replace(one, seconds=one.seconds * np.where(one.is_update, 1.0, batch / nearest))
        place = int(np.searchsorted(known, batch))
        low, high = self._times[known[place - 1]], self._times[known[place]]
        share = (batch - known[place - 1]) / (known[place] - known[place - 1])
        return replace(low, seconds=low.seconds + share * (high.seconds - low.seconds))

    def limits(self) -> Mapping[str, int]:
        """Return the most stages, a layer each; no operator is divided."""
        return {"pp": len(next(iter(self.tables.values()))), **dict.fromkeys(SPLITS, 1)}

    def layers(self, batch: int) -> tuple[Layer, ...]:
        """Return the layers at so many examples."""
        if batch in self.tables:
            return self.tables[batch]
        known = np.array(list(self.tables), float)
        if not known[0] < batch < known[-1]:
            return tuple(_scaled(one, batch) for one in self.tables[self._nearest(batch)])
        return tuple(_between(rows, known, batch) for rows in zip(*self.tables.values(), strict=True))

    def _warnings(self, batch: int) -> tuple[str, ...]:
        low, high = min(self.tables), max(self.tables)
        if low <= batch <= high:
            return ()
        known = f"{low} examples" if low == high else f"{low} to {high} examples"
        nearest = self._nearest(batch)
        return (f"layers were measured at {known}: those at {batch} are in proportion to those at {nearest}",)

    def _nearest(self, batch: int) -> int:
        return min(self.tables, key=lambda one: abs(one - batch))

    def _memory(self, rank: RankGraph) -> StepMemory:
        held = sum(one.bytes for one in rank.gradients)
        saved = sum(op.output_bytes if op.saved_bytes is None else op.saved_bytes for op in _forward(rank))
        memory = StepMemory(held, held, round(self.state_bytes * held), 0, 0, saved, 0)
        return replace(memory, live_bytes=int(Memory(memory, rank).live().with_gradients))


def _check(batch: int, degrees: ParallelDegrees) -> None:
    check_whole(degrees, "a table of layers")
    if batch < 1:
        raise CdmppError(f"a micro-batch of {batch} examples: expected 1 or more")


def _forward(rank: RankGraph) -> list[Op]:
    return [op for op in rank.ops if op.phase == "forward"]


def _scaled(layer: Layer, batch: int) -> Layer:
    """A layer in proportion; the update is that of the same parameters."""
    times = batch / layer.examples
    values = {name: getattr(layer, name) for name in _BY_EXAMPLES if name != "update_s"}
    found: dict[str, Any] = {name: _like(value, value, times) for name, value in values.items()}
    return replace(layer, examples=batch, **found)


def _between(rows: Sequence[Layer], known: np.ndarray, batch: int) -> Layer:
    found = dict[str, Any]()
    for name in _BY_EXAMPLES:
        values = [getattr(row, name) for row in rows]
        found[name] = None if None in values else _like(values[0], float(np.interp(batch, known, values)), 1.0)
    return replace(rows[0], examples=batch, **found)


def _like(kind: float | int | None, value: float | None, times: float) -> float | int | None:
    """``value`` times a number, whole where ``kind`` is."""
    if value is None:
        return None
    return round(value * times) if isinstance(kind, int) else value * times

"""A source of equal layers, whose seconds and bytes grow with the batch; splits divide their seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource, one_split_of
from cdmpp.steps.from_layers import Layer, graph_of_layers


class ToySource(StepSource):
    """Layer after layer; the backward pass takes twice as long as the forward pass."""

    def __init__(self, layers: int = 8, forward_s: float = 1e-3, parameters: int = 4_000_000, output: int = 100_000):
        self.layers, self.forward_s, self.parameters, self.output = layers, forward_s, parameters, output

    def work(self, batch: int, degrees: ParallelDegrees, strategies=()) -> RankWork:
        name, parts = one_split_of(degrees)
        seconds, size = self.forward_s * batch / parts, self.parameters
        if name in ("filter", "channel"):
            size //= parts
        names = [f"layer.{number}" for number in range(self.layers)]
        graph = graph_of_layers(
            [Layer(one, seconds, 2 * seconds, size, self.output * batch) for one in names], 1, 1e-4 * size / 4_000_000
        )
        rank = graph.ranks[0]
        rank = replace(rank, modules=tuple(replace(one, rows=((size // 4, 4, 0),)) for one in rank.modules))
        exchanges = (
            ()
            if parts == 1
            else [
                OpExchange("all_gather", self.output * batch, name, place, (place + 1,), f"{one} outputs")
                for place, one in enumerate(names)
            ]
        )
        total = self.layers * size
        memory = StepMemory(total, total, 2 * total, 0, 1000 * batch, self.layers * self.output * batch, 0)
        return RankWork(rank, tuple(exchanges), memory, 0.9, 1.2)

    def limits(self) -> Mapping[str, int]:
        return {"pp": self.layers, "filter": 64, "channel": 16, "spatial": 32}

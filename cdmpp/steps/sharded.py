"""Sharded: every rank keeps a part of each parameter, as PyTorch's fully sharded data parallel (FSDP2) does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import StepGraph


@dataclass(frozen=True)
class Sharded:
    """Each module is gathered before its forward pass and again before its backward pass; then gradients are scattered.

    A rank updates only its own shard.
    """

    overlap: bool = True
    """As on GPUs: a module is gathered while the one before computes, and gradients are scattered while the next one
    does, one module at a time. False, as on CPUs: computing stands still meanwhile."""

    name = "fsdp"

    def shards(self, ranks: int) -> int:
        """Ranks over which parameters are cut."""
        return ranks

    def exchanges(self, graph: StepGraph) -> tuple[Exchange, ...]:
        """The exchanges of one step, in the order in which ranks launch them.

        Raises:
            CdmppError: ranks with other modules than rank 0, or none although there are gradients.
        """
        graph.check_alike()
        modules = graph.ranks[0].modules
        if not modules and graph.ranks[0].gradients:
            raise CdmppError("fully sharded data parallel needs modules, and this step has none: take ddp or ps")
        forward = sorted(range(len(modules)), key=lambda i: modules[i].forward)
        backward = sorted(range(len(modules)), key=lambda i: modules[i].backward)
        again = [module for module in backward if not modules[module].is_kept]
        launched = [
            *self._scatters(graph, sorted(backward, key=lambda i: modules[i].backward[1])),
            *self._gathers(graph, forward, "forward"),
            *self._gathers(graph, again, "backward"),
        ]
        return tuple(sorted(launched, key=lambda exchange: exchange.after[0]))  # stable: scatters go first

    def _gathers(self, graph: StepGraph, order: Sequence[int], phase: str) -> list[Exchange]:
        """Gathers of modules by number. With overlap one may leave where the module before begins."""
        found = []
        for place, number in enumerate(order):
            ahead, module = order[max(place - 1, 0)] if self.overlap else number, graph.ranks[0].modules[number]
            after = {rank: max(begin - 1, START) for rank, begin in _places(graph, ahead, phase, 0).items()}
            before = {rank: (begin,) for rank, begin in _places(graph, number, phase, 0).items()}
            found.append(Exchange("all_gather", module.bytes, after, before, f"{module.name} {phase}"))
        return found

    def _scatters(self, graph: StepGraph, order: Sequence[int]) -> list[Exchange]:
        """With overlap, what follows the backward pass of the next module waits: one buffer holds what is scattered."""
        found = []
        for place, number in enumerate(order):
            module, after = graph.ranks[0].modules[number], _places(graph, number, "backward", 1)
            blocks = order[min(place + 1, len(order) - 1)] if self.overlap else number
            before = {rank: (end + 1,) for rank, end in _places(graph, blocks, "backward", 1).items()}
            found.append(Exchange("reduce_scatter", module.bytes, after, before, f"{module.name} gradients"))
        return found


def _places(graph: StepGraph, number: int, phase: str, end: int) -> dict[int, int]:
    return {rank.rank: getattr(rank.modules[number], phase)[end] for rank in graph.ranks}

"""Step graphs with round numbers: layers that take as long forward and twice as long backward, and one update."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import Topology, fitted
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph

MIB = 2**20
WIRE = AlphaBeta(1e-4, 1e-9)
"""0.1 ms a message, 1 GB/s."""


def rank_graph(
    rank: int = 0,
    sizes: Sequence[int] = (4 * MIB,) * 4,
    layer_s: float = 1e-3,
    update_s: float = 1e-3,
    gap_s: float = 0.0,
) -> RankGraph:
    """A layer a size, in bytes of its parameters; each layer is a module."""
    count = len(sizes)
    forward = [Op(f"forward {i}", "forward", layer_s, gap_s, "dense") for i in range(count)]
    backward = [Op(f"backward {i}", "backward", 2 * layer_s, gap_s, "dense") for i in reversed(range(count))]
    update = Op("update", "update", update_s, gap_s, "elementwise")
    last = [2 * count - 1 - i for i in range(count)]
    return RankGraph(
        rank,
        (*forward, *backward, update),
        tuple(Gradient(f"layer {i}", size, last[i]) for i, size in enumerate(sizes)),
        tuple(ModuleSpan(f"layer {i}", size, (i, i), (last[i], last[i])) for i, size in enumerate(sizes)),
    )


def ranks_of(ranks: int, **options: object) -> StepGraph:
    """As many equal ranks."""
    return graph_of(*(rank_graph(rank, **options) for rank in range(ranks)))


def graph_of(*ranks: RankGraph) -> StepGraph:
    """A step of these ranks."""
    return StepGraph(ranks)


def wires(ranks: int, alpha_s: float = WIRE.alpha_s, beta_s: float = WIRE.beta_s, backend: str = "nccl") -> Topology:
    """Ranks on links of two numbers."""
    return fitted(AlphaBeta(alpha_s, beta_s), ranks, backend)

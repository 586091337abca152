"""Work of ranks with round numbers: layers that take as long forward and twice as long backward, and one update."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.fabric import Fabric, fitted
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.steps.work import Gradient, Operation, RankWork, Unit

MIB = 2**20
WIRE = AlphaBeta(1e-4, 1e-9)
"""0.1 ms a message, 1 GB/s."""


def rank_work(
    rank: int = 0,
    sizes: Sequence[int] = (4 * MIB,) * 4,
    layer_s: float = 1e-3,
    update_s: float = 1e-3,
    gap_s: float = 0.0,
) -> RankWork:
    """A layer a size, in bytes of its parameters; each layer is a unit."""
    count = len(sizes)
    forward = [Operation(f"forward {i}", "forward", layer_s, gap_s, "dense") for i in range(count)]
    backward = [Operation(f"backward {i}", "backward", 2 * layer_s, gap_s, "dense") for i in reversed(range(count))]
    update = Operation("update", "update", update_s, gap_s, "elementwise")
    last = [2 * count - 1 - i for i in range(count)]
    return RankWork(
        rank,
        (*forward, *backward, update),
        tuple(Gradient(f"layer {i}", size, last[i]) for i, size in enumerate(sizes)),
        tuple(Unit(f"layer {i}", size, (i, i), (last[i], last[i])) for i, size in enumerate(sizes)),
    )


def ranks_of(ranks: int, **options: object) -> list[RankWork]:
    """As many equal ones."""
    return [rank_work(rank, **options) for rank in range(ranks)]


def wires(ranks: int, alpha_s: float = WIRE.alpha_s, beta_s: float = WIRE.beta_s, backend: str = "nccl") -> Fabric:
    """Ranks on links of two numbers."""
    return fitted(AlphaBeta(alpha_s, beta_s), ranks, backend)

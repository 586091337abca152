"""A traced step of two ranks with round numbers: four layers, four buckets."""

from __future__ import annotations

from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.trace.op_kind import kind_of_op

MB = 2**20


def job(slow: float = 1.0, latency_s: float = 0.0, gap_s: float = 0.0) -> StepGraph:
    """Four layers, each 1 s forward and 2 s backward with 1 MiB of gradients: 1 s on the wire and the latency."""
    ranks = []
    for rank, factor in ((0, 1.0), (1, slow)):
        forward = [Op("linear", "forward", factor, delay_s=gap_s) for _ in range(4)]
        backward = [Op("backward", "backward", 2 * factor) for _ in range(4)]
        update = Op("sgd", "update", 0.5, kind=kind_of_op("sgd", "update"))
        ranks.append(RankGraph(rank, (*forward, *backward, update), gradients([4, 5, 6, 7])))
    exchanges = tuple(
        Exchange("all_reduce", MB, {0: 4 + n, 1: 4 + n}, {0: (8,), 1: (8,)}, wire_s=1.0 + latency_s,
                 lag_s={0: 0.0, 1: 0.0})
        for n in range(4)
    )  # fmt: skip
    probed = (("all_reduce", 1, latency_s + 1e-6), ("all_reduce", MB, latency_s + 1.0))
    probed += (("all_reduce", 4 * MB, latency_s + 4.0),)
    return StepGraph(tuple(ranks), exchanges, "gloo", measured=Measured((13.5,), probed=probed))


def gradients(places: list[int], sizes: list[int] | None = None) -> tuple[Gradient, ...]:
    """The last in the model is ready first, as a trace is read."""
    sizes = sizes or [MB] * len(places)
    made = [Gradient(f"gradient {n}", size, place) for n, (size, place) in enumerate(zip(sizes, places, strict=True))]
    return tuple(reversed(made))


def step_s(one: StepGraph) -> float:
    return replay(one).step_s

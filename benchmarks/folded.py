"""Replays of a pipeline of many replicas: all ranks, one for each stage, and of these with merged ops."""

from __future__ import annotations

from collections.abc import Callable

from timing import best_seconds, finish

from cdmpp.collectives import cluster
from cdmpp.collectives.topology import Topology, on_cluster
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.merge_ops import merge_ops

STAGES, LAYERS, ROUNDS = 8, 240, 2
MIB = 2**20


def step_s(work: RankWork, plan: Plan, topology: Topology, fold: bool, merge: bool) -> float:
    """Lower and replay: the step that comes out is the same in all ways."""
    graph = lower_work(work, plan, topology, fold).graph
    return replay(merge_ops(graph) if merge else graph, topology).step_s


def main() -> None:
    layers = [Layer(f"layer.{i}", 1e-3, 2e-3, 4 * MIB, 8 * MIB) for i in range(LAYERS)]
    work = RankWork(graph_of_layers(layers, update_s=1e-3).ranks[0])
    rows = []
    for ranks, micro_batches in ((32, 8), (32, 64), (1024, 64)):
        degrees = ParallelDegrees(pp=STAGES, dp_replicate=ranks // STAGES)
        plan = Plan(degrees=degrees, model_parallel=(Pipeline(micro_batches=micro_batches),))
        topology = on_cluster(cluster.get("dgx-h100").grown(ranks), ranks)
        found = dict[str, float]()

        def way(name: str, fold: bool, merge: bool) -> Callable[[], None]:
            def run() -> None:
                found[name] = step_s(work, plan, topology, fold, merge)  # noqa: B023

            return run

        ways = {"folded": way("folded", True, False), "merged": way("merged", True, True)}
        if ranks <= 32:  # all ranks of the largest job would be some ten million tasks
            ways["all"] = way("all", False, False)
        seconds = best_seconds(ways, ROUNDS)
        off = max(abs(one / found["merged"] - 1) for one in found.values())
        assert off < 1e-9, found
        rows.append({"ranks": ranks, "micro_batches": micro_batches, "step_s": found["merged"], **seconds})
    finish(rows)


if __name__ == "__main__":
    main()

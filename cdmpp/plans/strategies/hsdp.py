"""HSDP: groups of ranks shard the model, each group has a whole one, as PyTorch's FSDP2 does on a mesh of two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import ModuleSpan, StepGraph
from cdmpp.steps.strategy import IntArray, Strategy


@STRATEGIES.register
@dataclass(frozen=True)
class HSDP(FSDP):
    """Within a group everything is as under FSDP; each part of the gradients is then summed over all groups.

    Ranks along ``dp_shard`` are a group, and so are those along other degrees that share parameters.
    """

    name = "hsdp"
    title = "hybrid sharded data parallel"
    degrees = ("dp_shard", "dp_replicate")

    def sharding(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return all degrees along which ranks have the same parameters, but ``dp_replicate``."""
        return tuple(name for name in sizes if name != "dp_replicate")

    def exchanges_of(
        self, graph: StepGraph, many: Sequence[Mapping[str, int]]
    ) -> tuple[tuple[Exchange, ...], IntArray] | None:
        """List them once where all have several shards and several replicas."""
        if min(min(self.shards(sizes), sizes.get("dp_replicate", 1)) for sizes in many) > 1:
            return super().exchanges_of(graph, many)
        return Strategy.exchanges_of(self, graph, many)

    def _bytes(self, kind: str, module: ModuleSpan, sizes: Mapping[str, int]) -> int:
        """Bytes of one exchange of a module; replicas sum what a scatter leaves."""
        found = super()._bytes(kind, module, sizes)
        return found // self.shards(sizes) if kind == "all_reduce" else found

    def _launches(self, graph: StepGraph, sizes: Mapping[str, int]) -> list[tuple[int, Exchange]]:
        """Those of FSDP, and an all-reduce of what each reduce-scatter leaves; on a GPU only the update awaits it.

        Without overlap each exchange waits for the one before, whichever group that is of.

        A group of one rank gathers and scatters nothing.
        """
        found, shards = list[tuple[int, Exchange]](), self.shards(sizes)
        for number, one in super()._launches(graph, sizes):
            if shards > 1:
                found.append((number, one if self.overlap else replace(one, follows=True)))
            if one.kind == "reduce_scatter" and sizes.get("dp_replicate", 1) > 1:
                before, name = {} if self.overlap else one.before, f"{one.name} of replicas"
                part = Exchange(
                    "all_reduce", one.bytes // shards, one.after, before, name, follows=True, along=("dp_replicate",)
                )
                found.append((number, part))
        return found

    def torch_lines(self) -> tuple[str, ...]:
        """Call ``fully_shard`` with a mesh of two axes."""
        axes = 'mesh_dim_names=("replicate", "shard")'
        lines = (line.replace(")", ", mesh=mesh)") for line in super().torch_lines())
        return (f'mesh = init_device_mesh("cuda", (dp_replicate, dp_shard), {axes})', *lines)

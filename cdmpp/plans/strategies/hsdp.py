"""HSDP: groups of ranks shard the model, each group has a whole one, as PyTorch's FSDP2 does on a mesh of two axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph


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

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List those of FSDP, and an all-reduce of what each reduce-scatter leaves; on a GPU only the update awaits it.

        Without overlap each exchange waits for the one before, whichever group that is of.

        A group of one rank gathers and scatters nothing.
        """
        found, sizes = list[Exchange](), sizes or {self.degrees[0]: len(graph.ranks)}
        shards, replicas = self.shards(sizes), sizes.get("dp_replicate", 1)
        for one in super().exchanges(graph, sizes):
            found += [replace(one, follows=not self.overlap)] if shards > 1 else []
            if one.kind == "reduce_scatter" and replicas > 1:
                before = {} if self.overlap else one.before
                part = replace(one, kind="all_reduce", bytes=one.bytes // shards, before=before)
                found.append(replace(part, name=f"{one.name} of replicas", along=("dp_replicate",), follows=True))
        return tuple(found)

    def torch_lines(self) -> tuple[str, ...]:
        """Call ``fully_shard`` with a mesh of two axes."""
        axes = 'mesh_dim_names=("replicate", "shard")'
        lines = (line.replace(")", ", mesh=mesh)") for line in super().torch_lines())
        return (f'mesh = init_device_mesh("cuda", (dp_replicate, dp_shard), {axes})', *lines)

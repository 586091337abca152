"""HSDP: groups of ranks shard the model, each group has a whole one, as PyTorch's FSDP2 does on a mesh of two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.plans.module_calls import REDUCE, SCATTER, ModuleCalls
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.launches import Launches
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import Strategy


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

    def launches(self, graph: StepGraph, many: Sequence[Mapping[str, int]]) -> Launches | None:
        """List them once where all have several shards and several replicas."""
        if min(min(self.shards(sizes), sizes.get("dp_replicate", 1)) for sizes in many) > 1:
            return super().launches(graph, many)
        return Strategy.launches(self, graph, many)

    def _along(self, kind: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Replicas sum along their own degree."""
        return ("dp_replicate",) if kind == REDUCE else super()._along(kind, sizes)

    def _bytes(self, kind: int, module: ModuleSpan, sizes: Mapping[str, int]) -> int:
        """Bytes of one exchange of a module; replicas sum what a scatter leaves."""
        found = super()._bytes(kind, module, sizes)
        return found // self.shards(sizes) if kind == REDUCE else found

    def _calls(self, graph: StepGraph, sizes: Mapping[str, int]) -> ModuleCalls:
        """Those of FSDP, and an all-reduce of what each reduce-scatter leaves; on a GPU only the update awaits it.

        Without overlap each exchange waits for the one before, whichever group that is of.

        A group of one rank gathers and scatters nothing.
        """
        found = super()._calls(graph, sizes)
        sums = replace(found, kind=np.full_like(found.kind, REDUCE), follows=np.ones_like(found.follows))
        if self.overlap:
            sums = replace(sums, before=np.full_like(found.before, -1))
        else:
            found = replace(found, follows=np.ones_like(found.follows))
        is_summed = (found.kind == SCATTER) & (sizes.get("dp_replicate", 1) > 1)
        both, count = ModuleCalls.joined([found, sums]), len(found.kind)
        order = np.arange(2 * count).reshape(2, count).T.ravel()  # each sum behind what it sums
        kept = np.concatenate([np.full(count, self.shards(sizes) > 1), is_summed])
        return both.taken(order[kept[order]])

    def torch_lines(
        self, axes: str = "", optimizer: str = "torch.optim.AdamW", policy: str = "", is_on_host: bool = False
    ) -> tuple[str, ...]:
        """Call ``fully_shard`` with a mesh of two axes."""
        if axes:
            return super().torch_lines(axes, policy=policy, is_on_host=is_on_host)
        names = 'mesh_dim_names=("replicate", "shard")'
        made = f'mesh = init_device_mesh("cuda", (dp_replicate, dp_shard), {names})'
        return (made, *super().torch_lines("mesh", policy=policy, is_on_host=is_on_host))

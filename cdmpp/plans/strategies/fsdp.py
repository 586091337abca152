"""FSDP: every rank keeps a part of each parameter, as PyTorch's fully sharded data parallel (FSDP2) does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.module_calls import GATHER, KINDS, ModuleCalls, gathers, scatters
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.launches import Launches
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import RankBytes, Strategy

_AHEAD = """\
for way in ("forward", "backward"):
    order = [model, *(blocks if way == "forward" else reversed(blocks))]
    for place, one in enumerate(order):
        getattr(one, f"set_modules_to_{way}_prefetch")(order[place + 1 : place + COUNT])
"""
"""Lines that gather ``COUNT`` - 1 modules ahead."""


@STRATEGIES.register
@dataclass(frozen=True)
class FSDP(Strategy):
    """Each module is gathered before its forward pass and again before its backward pass; then gradients are scattered.

    A rank updates only its own part. With ``overlap``, as on GPUs, a module is gathered while the one before computes,
    and gradients are scattered while the next one does, one module at a time. Without it, as on CPUs, ranks stand still
    meanwhile. Of several accumulated batches each gathers, and the last one scatters.
    """

    LIMITS = {"prefetch": Limits(1, 64, "modules")}
    name = "fsdp"
    title = "fully sharded data parallel"
    casts_parameters: ClassVar[bool] = True
    copies_buffers: ClassVar[bool] = True
    sums_parts: ClassVar[bool] = True
    can_offload: ClassVar[bool] = True
    degrees: ClassVar[tuple[str, ...]] = ("dp_shard",)

    reshard_after_forward: bool = True
    """True if parameters are let go after the forward pass and gathered again for the backward pass."""
    scatter_each_batch: bool = False
    """True if every accumulated batch scatters its gradients, and a rank keeps a part of their sum. False: whole ones
    are added up, and the last batch scatters them (``set_requires_gradient_sync(False)`` before it)."""
    prefetch: int = 1
    """Modules that are gathered ahead of the one that runs. 1: as FSDP2 does by itself; more, by
    ``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch``, hide uneven gathers and hold more."""
    is_pipelined: bool = False
    """True in a stage of ``torch.distributed.pipelining``: parameters are gathered for the first micro-batch and stay,
    and all gradients are scattered after the last one."""

    def in_pipeline(self) -> Self:
        """Gather once a step, as PyTorch's pipelines do and torchtitan sets ``reshard_after_forward`` for them."""
        return replace(self, is_pipelined=True)

    def sharding(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the degrees along which parameters are divided: all along which ranks have the same ones."""
        return tuple(sizes)

    def norms_along(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the degrees along which a reduce-scatter divides gradients."""
        return tuple(name for name in self.sharding(sizes) if sizes[name] > 1)

    def gradient_parts(self, sizes: Mapping[str, int]) -> int:
        """Return the parts that a reduce-scatter leaves."""
        return self.shards(sizes)

    def shards(self, sizes: Mapping[str, int]) -> int:
        """Return the ranks that divide the parameters: each updates its own part."""
        return math.prod(sizes[name] for name in self.sharding(sizes))

    @property
    def exchanges_each_batch(self) -> bool:
        """Return True: each batch gathers."""
        return True

    def on_backend(self, backend: str) -> Self:
        """Compute nothing during exchanges on gloo, as PyTorch does."""
        return replace(self, overlap=self.overlap and backend != "gloo")

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List all-gathers and reduce-scatters of modules, in the order in which ranks launch them.

        As in FSDP2, frozen parameters are gathered as others are. A module through which no gradient goes is gathered
        again only where the one after it in the forward pass fetches it ahead. A module that is there several times
        runs in several batches.

        ``CdmppError`` where the modules of ranks differ, there are none although there are gradients, or a parameter
        has no dimension to divide.
        """
        sizes = sizes or {self.degrees[0]: len(graph.ranks)}
        calls, modules, found = self._calls(graph, sizes), graph.ranks[0].modules, list[Exchange]()
        places = {rank.rank: calls.places(rank) for rank in graph.ranks}
        for number, (kind, module) in enumerate(zip(calls.kind.tolist(), calls.module.tolist(), strict=True)):
            after = {rank: int(own[number]) for rank, (own, _) in places.items()}
            before = {rank: (int(own[number]),) for rank, (_, own) in places.items() if own[number] >= 0}
            size, name = self._bytes(kind, modules[module], sizes), calls.name(number, graph.ranks[0])
            follows, along = bool(calls.follows[number]), self._along(kind, sizes)
            found.append(Exchange(KINDS[kind], size, after, before, name, follows=follows, along=along))
        return tuple(found)

    def launches(self, graph: StepGraph, many: Sequence[Mapping[str, int]]) -> Launches | None:
        """List exchanges once, and their bytes for each number of ranks: only these depend on it."""
        (rank,), calls = graph.ranks, self._calls(graph, many[0])
        after, waits = calls.places(rank)
        kinds, group = np.unique(calls.kind, return_inverse=True)
        (waited,) = np.nonzero(waits >= 0)
        like = dict[object, int]()  # many modules have the same parameters
        number = [like.setdefault((one.bytes, one.rows, one.trained_rows), len(like)) for one in rank.modules]
        first = {like: module for like, module in reversed([*zip(number, rank.modules, strict=True)])}
        sent = [[[self._bytes(kind, first[one], sizes) for sizes in many] for one in like.values()] for kind in kinds]
        all_sizes = np.array(sent, np.int64).reshape(len(kinds), len(like), len(many))
        return Launches(
            tuple((KINDS[kind], self._along(kind, many[0])) for kind in kinds),
            group,
            after,
            (waits[waited], waited),
            calls.follows,
            all_sizes[group, np.array(number, np.int64)[calls.module]],
        )

    def _along(self, kind: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Degrees along which ranks take part in an exchange of one kind; empty: all."""
        return () if len(self.sharding(sizes)) == len(sizes) else self.sharding(sizes)

    def _bytes(self, kind: int, module: ModuleSpan, sizes: Mapping[str, int]) -> int:
        """Bytes of one exchange of a module."""
        ranks = self.shards(sizes)
        return module.padded_bytes(ranks) if kind == GATHER else module.scattered_bytes(ranks)

    def _calls(self, graph: StepGraph, sizes: Mapping[str, int]) -> ModuleCalls:
        """The exchanges in the order in which rank 0 launches them."""
        graph.check_alike()
        modules, ranks = graph.ranks[0].modules, self.shards(sizes)
        if not modules and graph.ranks[0].gradients:
            raise CdmppError(f"{self.name} needs modules, and this step has none: take ddp or ps")
        if odd := [one.name for one in modules if any([not rows and size for rows, size, _ in one.rows])]:
            raise CdmppError(
                f"{self.name}: module {odd[0]!r} has a parameter without dimensions, and FSDP2 supports no scalar "
                "parameters: give it the shape (1,), or take ddp or ps"
            )
        batches, found = graph.ranks[0].module_batches, list[ModuleCalls]()
        for number, own in enumerate(batches):
            is_last = number == len(batches) - 1
            forward = sorted(own, key=lambda i: modules[i].forward)
            backward = sorted(own, key=lambda i: modules[i].backward)
            ends = sorted(own, key=lambda i: (modules[i].is_kept, modules[i].forward[1]))
            ahead = {one for one, later in zip(ends, ends[1:], strict=False) if modules[later].in_backward}
            again = [
                i for i in backward
                if self.reshard_after_forward and not modules[i].is_kept and (modules[i].in_backward or i in ahead)
            ]  # fmt: skip
            if is_last or (self.scatter_each_batch and not self.is_pipelined):
                found.append(scatters(modules, [i for i in own if modules[i].scattered_bytes(ranks)], self))
            if number == 0 or not self.is_pipelined:
                found.append(gathers(forward, self, is_backward=False))
            if not self.is_pipelined:
                found.append(gathers(again, self, is_backward=True))
        calls = ModuleCalls.joined(found)
        after, _ = calls.places(graph.ranks[0])
        return calls.taken(np.lexsort((calls.kind == GATHER, after)))  # scatters go first

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Count a part of everything; in the passes gathered parameters, and gradients that are not scattered yet.

        Gathered are two modules and the root, or all, and once more experts that are divided along their second
        dimension, whose parts are joined behind the gather. Gradients are those of the root and of one module, or all
        that are added up, and of the largest module a second time while it is scattered.
        """
        ranks = self.shards(sizes)
        if ranks == 1:
            return super().rank_bytes(held, modules, sizes, batches)
        blocks = sorted((one.padded_bytes(ranks) for one in modules if not one.is_kept), reverse=True)
        root = sum(one.padded_bytes(ranks) for one in modules if one.is_kept)
        padding = (sum(blocks) + root) / (sum(one.bytes for one in modules) or 1) if modules else 1.0
        ahead = sum(blocks[: 1 + self.prefetch]) + root
        if self.is_pipelined or not self.reshard_after_forward:
            ahead = math.ceil(padding * held.parameter_bytes) + sum(blocks[:1])
        ahead += max((one.turned_bytes(ranks) for one in modules), default=0)
        scattered = [one.scattered_bytes(ranks) for one in modules]
        whole = [min(one.scattered_bytes(ranks), one.padded_bytes(ranks)) for one in modules]  # before they are cast
        sums = sum(size for one, size in zip(modules, whole, strict=True) if one.is_kept) + max(whole, default=0)
        if batches > 1 and (self.is_pipelined or not self.scatter_each_batch):
            sums = sum(scattered)
        return RankBytes(
            math.ceil(padding * held.parameter_bytes / ranks),
            math.ceil(padding * held.state_bytes / ranks),
            math.ceil(padding * held.gradient_bytes / ranks),
            math.ceil(padding * held.update_bytes / ranks),
            gathered_bytes=ahead,
            passing_bytes=sums + max(scattered, default=0),
        )

    def proposals(self, graph: StepGraph) -> Iterator[tuple[str, str, Iterable[Self]]]:
        """Propose parameters that stay gathered after the forward pass, or do not."""
        again = not self.reshard_after_forward
        yield "reshard after forward", "communication", [replace(self, reshard_after_forward=again)]

    def memory_savers(self, ranks: int) -> Iterator[tuple[str, Self]]:
        """Propose parameters that are let go after the forward pass."""
        if not self.reshard_after_forward:
            yield "reshard after forward", replace(self, reshard_after_forward=True)

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        if setting == "scatter_each_batch":
            return f"{'each' if self.scatter_each_batch else 'only the last'} accumulated batch scatters gradients"
        if setting == "is_pipelined":
            return "parameters stay gathered for all micro-batches" if self.is_pipelined else "no pipeline"
        if setting == "reshard_after_forward":
            again = "are gathered again for the backward pass" if self.reshard_after_forward else "stay gathered"
            return f"parameters {again}"
        if setting == "prefetch":
            return f"{self.prefetch} modules are gathered ahead"
        return super().describe(setting)

    def torch_sync(self) -> str:
        """Scatter the gradients of the last batch, or of all."""
        return "" if self.scatter_each_batch else "model.set_requires_gradient_sync(is_last)"

    def torch_lines(
        self, axes: str = "", optimizer: str = "torch.optim.AdamW", policy: str = "", is_on_host: bool = False
    ) -> tuple[str, ...]:
        """Call ``fully_shard`` on each block and on the model.

        ``policy``: of types, where there is one; ``is_on_host``: True if parameters lie in the memory of the host.
        """
        again = "" if self.reshard_after_forward and not self.is_pipelined else ", reshard_after_forward=False"
        again += f", mesh={axes}" if axes else ""
        again += ", mp_policy=policy" if policy else ""
        again += ", offload_policy=CPUOffloadPolicy(pin_memory=is_gpu)" if is_on_host else ""
        made = (f"policy = {policy}",) if policy else ()
        lines = (*made, f"for block in blocks: fully_shard(block{again})", f"fully_shard(model{again})")
        is_told = self.prefetch > 1 and not self.is_pipelined
        return (*lines, *_AHEAD.replace("COUNT", str(1 + self.prefetch)).splitlines()) if is_told else lines

"""FSDP: every rank keeps a part of each parameter, as PyTorch's fully sharded data parallel (FSDP2) does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import ModuleSpan, StepGraph
from cdmpp.steps.strategy import IntArray, RankBytes, Strategy


@STRATEGIES.register
@dataclass(frozen=True)
class FSDP(Strategy):
    """Each module is gathered before its forward pass and again before its backward pass; then gradients are scattered.

    A rank updates only its own part. With ``overlap``, as on GPUs, a module is gathered while the one before computes,
    and gradients are scattered while the next one does, one module at a time. Without it, as on CPUs, ranks stand still
    meanwhile. Of several accumulated batches each gathers, and the last one scatters.
    """

    name = "fsdp"
    title = "fully sharded data parallel"
    degrees: ClassVar[tuple[str, ...]] = ("dp_shard",)

    reshard_after_forward: bool = True
    """True if parameters are let go after the forward pass and gathered again for the backward pass."""
    scatter_each_batch: bool = False
    """True if every accumulated batch scatters its gradients, and a rank keeps a part of their sum. False: whole ones
    are added up, and the last batch scatters them (``set_requires_gradient_sync(False)`` before it)."""
    is_pipelined: bool = False
    """True in a stage of ``torch.distributed.pipelining``: parameters are gathered for the first micro-batch and stay,
    and all gradients are scattered after the last one."""

    def in_pipeline(self) -> Self:
        """Gather once a step, as PyTorch's pipelines do and torchtitan sets ``reshard_after_forward`` for them."""
        return replace(self, is_pipelined=True)

    def sharding(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return the degrees along which parameters are divided: all along which ranks have the same ones."""
        return tuple(sizes)

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
        return tuple(one for _, one in self._launches(graph, sizes or {self.degrees[0]: len(graph.ranks)}))

    def exchanges_of(
        self, graph: StepGraph, many: Sequence[Mapping[str, int]]
    ) -> tuple[tuple[Exchange, ...], IntArray] | None:
        """List exchanges once, and their bytes for each number of ranks: only these depend on it."""
        launched, modules, sent = self._launches(graph, many[0]), graph.ranks[0].modules, list[list[int]]()
        alike: dict[object, list[int]] = {}  # many modules have the same parameters
        for number, one in launched:
            key = (one.kind, modules[number].bytes, modules[number].rows, modules[number].trained_rows)
            if key not in alike:
                alike[key] = [self._bytes(one.kind, modules[number], sizes) for sizes in many]
            sent.append(alike[key])
        return tuple(one for _, one in launched), np.array(sent, np.int64).reshape(len(launched), len(many))

    def _bytes(self, kind: str, module: ModuleSpan, sizes: Mapping[str, int]) -> int:
        """Bytes of one exchange of a module."""
        ranks = self.shards(sizes)
        return module.padded_bytes(ranks) if kind == "all_gather" else module.scattered_bytes(ranks)

    def _launches(self, graph: StepGraph, sizes: Mapping[str, int]) -> list[tuple[int, Exchange]]:
        """The exchanges, each with the number of its module."""
        graph.check_alike()
        modules, ranks = graph.ranks[0].modules, self.shards(sizes)
        if not modules and graph.ranks[0].gradients:
            raise CdmppError(f"{self.name} needs modules, and this step has none: take ddp or ps")
        if odd := [one.name for one in modules if any(not rows and size for rows, size in one.rows)]:
            raise CdmppError(
                f"{self.name}: module {odd[0]!r} has a parameter without dimensions, and FSDP2 supports no scalar "
                "parameters: give it the shape (1,), or take ddp or ps"
            )
        along = () if len(self.sharding(sizes)) == len(sizes) else self.sharding(sizes)
        batches, launched = graph.ranks[0].module_batches, list[tuple[int, Exchange]]()
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
                launched += self._scatters(graph, [i for i in own if modules[i].scattered_bytes(ranks)], ranks, along)
            if number == 0 or not self.is_pipelined:
                launched += self._gathers(graph, forward, "forward", ranks, along)
            if not self.is_pipelined:
                launched += self._gathers(graph, again, "backward", ranks, along)
        launched.sort(key=lambda one: (one[1].after[0], one[1].kind == "all_gather"))  # scatters go first
        return launched

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Count a part of everything; in the passes gathered parameters, and gradients that are not scattered yet.

        Gathered are two modules and the root, or all. Gradients are those of the root and of one module, or all that
        are added up, and of the largest module a second time while it is scattered.
        """
        ranks = self.shards(sizes)
        if ranks == 1:
            return super().rank_bytes(held, modules, sizes, batches)
        blocks = sorted((one.padded_bytes(ranks) for one in modules if not one.is_kept), reverse=True)
        root = sum(one.padded_bytes(ranks) for one in modules if one.is_kept)
        padding = (sum(blocks) + root) / (sum(one.bytes for one in modules) or 1) if modules else 1.0
        ahead = sum(blocks[:2]) + root
        if self.is_pipelined or not self.reshard_after_forward:
            ahead = math.ceil(padding * held.parameter_bytes) + sum(blocks[:1])
        scattered = [one.scattered_bytes(ranks) for one in modules]
        sums = sum(one.scattered_bytes(ranks) for one in modules if one.is_kept) + max(scattered, default=0)
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
        return super().describe(setting)

    def torch_sync(self) -> str:
        """Scatter the gradients of the last batch, or of all."""
        return "" if self.scatter_each_batch else "model.set_requires_gradient_sync(is_last)"

    def torch_lines(self) -> tuple[str, ...]:
        """Call ``fully_shard`` on each block and on the model."""
        again = "" if self.reshard_after_forward else ", reshard_after_forward=False"
        return (f"for block in blocks: fully_shard(block{again})", f"fully_shard(model{again})")

    def _gathers(
        self, graph: StepGraph, order: Sequence[int], phase: str, ranks: int, along: tuple[str, ...]
    ) -> list[tuple[int, Exchange]]:
        """All-gathers of modules by number. With overlap one may leave where the module before begins.

        Without it the backward pass gathers one ahead too, and stands still for it there.
        """
        found = []
        for place, number in enumerate(order):
            is_ahead, module = self.overlap or phase == "backward", graph.ranks[0].modules[number]
            ahead = order[max(place - 1, 0)] if is_ahead else number
            after = {rank: max(begin - 1, START) for rank, begin in _places(graph, ahead, phase, 0).items()}
            needed = number if self.overlap else ahead
            before = {rank: (begin,) for rank, begin in _places(graph, needed, phase, 0).items()}
            size = module.padded_bytes(ranks)
            name = f"{module.name} {phase}"
            found.append((number, Exchange("all_gather", size, after, before, name, along=along)))
        return found

    def _scatters(
        self, graph: StepGraph, own: Sequence[int], ranks: int, along: tuple[str, ...]
    ) -> list[tuple[int, Exchange]]:
        """The exchanges that scatter gradients, one a module.

        With overlap, what follows the backward pass of the next module waits: one buffer holds what is scattered.
        """
        modules, found = graph.ranks[0].modules, list[tuple[int, Exchange]]()
        order = sorted(own, key=lambda i: modules[i].backward[1])
        last = order[-1:]
        if self.is_pipelined:  # the root first, in the order of the model
            order = sorted(own, key=lambda i: (not modules[i].is_kept, modules[i].forward))
        for place, number in enumerate(order):
            after = _places(graph, last[0] if self.is_pipelined else number, "backward", 1)
            blocks = order[min(place + 1, len(order) - 1)] if self.overlap else number
            before = {rank: (end + 1,) for rank, end in _places(graph, blocks, "backward", 1).items()}
            size = modules[number].scattered_bytes(ranks)
            name = f"{modules[number].name} gradients"
            before = {} if self.is_pipelined else before
            found.append((number, Exchange("reduce_scatter", size, after, before, name, along=along)))
        return found


def _places(graph: StepGraph, number: int, phase: str, end: int) -> dict[int, int]:
    return {rank.rank: getattr(rank.modules[number], phase)[end] for rank in graph.ranks}

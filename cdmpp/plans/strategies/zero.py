"""ZeRO: ranks divide the optimizer's states, and from stage 2 on the gradients. Stage 3 is ``fsdp``.

Two frameworks do it in two ways. ``torch`` is ``ZeroRedundancyOptimizer`` under DistributedDataParallel, as recorded.
``deepspeed`` is what ``deepspeed/runtime/zero/stage_1_and_2.py`` says (read in 2026, not recorded).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.megatron_buckets import megatron_exchanges
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits, check_choice, numbers
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.launches import Launches
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, RankGraph, StepGraph
from cdmpp.steps.strategy import RankBytes, Strategy
from cdmpp.units import quantity

FRAMEWORKS = ("torch", "deepspeed", "megatron", "nanotron")


@STRATEGIES.register
@dataclass(frozen=True)
class ZeRO(Strategy):
    """Each rank updates its part of the parameters, and then sends it to all.

    torch, stage 1 only: gradients as under DDP, then a broadcast of each parameter by the rank that updated it. Whole
    parameters go, the largest first, to the rank that has least.

    DeepSpeed: an all-reduce of each bucket of gradients (by default it is no reduce-scatter: each rank drops what is
    not its own), then one all-gather of all parameters. Stage 1 exchanges the sum of accumulated batches, stage 2 the
    gradients of each. Without ``overlap`` (its ``overlap_comm``) buckets leave after the backward pass.

    Megatron's distributed optimizer, stage 1 only: one reduce-scatter of all gradients after the last backward pass,
    then one all-gather of all parameters. nanotron has an all-reduce there, as its
    ``sync_gradients_across_dp`` scatters nothing. With ``overlap`` (Megatron's ``--overlap-grad-reduce``)
    buckets leave as their gradients are there.
    """

    LIMITS = {
        "stage": Limits(1, 2),
        "bucket_elements": Limits(1, 2**40, "elements"),
        "gathered_share": numbers(0.01, 10, "bytes a byte"),
    }
    name = "zero"
    title = "ZeRO, sharded optimizer"
    averages_by_hooks = True

    stage: int = 1
    """1: states of the optimizer are divided; 2: gradients too."""
    framework: str | None = None
    """One of ``FRAMEWORKS``. None: torch for stage 1, DeepSpeed for stage 2, which torch does not have."""
    bucket_elements: int = 500_000_000
    """Most elements of a bucket of DeepSpeed, its ``reduce_bucket_size``: a buffer of that size is there in the passes,
    with ``overlap`` two."""
    gathered_share: float = 1.0
    """Bytes of a parameter that both gather by those of its gradient: 0.5 of 16 bits, added up in 32."""
    overlap_param_gather: bool = False
    """True if Megatron gathers each bucket of parameters while the next forward pass runs; it needs ``overlap``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.framework is not None:
            check_choice("zero.framework", self.framework, FRAMEWORKS)
        if self.is_megatron and self.stage > 1:
            raise CdmppError(f"zero.framework is {self.framework}: it is known for stage 1")
        if self.framework == "nanotron" and self.overlap:
            raise CdmppError(
                "zero.framework is nanotron, which sums up gradients behind the passes: give overlap false"
            )
        if self.overlap_param_gather and not (self.framework == "megatron" and self.overlap):
            raise CdmppError(
                "zero.overlap_param_gather is a switch of Megatron, which needs overlapped gradients too: give "
                "framework megatron and overlap true"
            )
        if self.framework == "torch" and self.stage > 1:
            raise CdmppError(
                "zero.stage is 2, and torch's ZeroRedundancyOptimizer has stage 1: take framework deepspeed, or fsdp "
                "with reshard_after_forward: false"
            )
        of_others = {"bucket_elements": self.is_deepspeed, "gathered_share": self.is_megatron}
        for name in (one for one, is_read in of_others.items() if not is_read):
            if (value := getattr(self, name)) != (default := getattr(type(self), name)):
                whose = "DeepSpeed's" if name == "bucket_elements" else "Megatron's and nanotron's"
                raise CdmppError(
                    f"zero.{name} is {value:,}, and it is {whose}, given framework {self.framework or 'torch'}: leave "
                    f"it out ({default:,}), or name that framework"
                )

    @property
    def is_deepspeed(self) -> bool:
        """Return True if DeepSpeed runs the step."""
        return self.framework == "deepspeed" or self.stage > 1

    @property
    def is_megatron(self) -> bool:
        """Return True if Megatron or nanotron runs the step."""
        return self.framework in ("megatron", "nanotron")

    def shards(self, sizes: Mapping[str, int]) -> int:
        """Return all ranks that have the same parameters; torch divides them evenly only if none is large."""
        return math.prod(sizes.values())

    def in_pipeline(self) -> ZeRO:
        """Refuse stage 2, as DeepSpeed does."""
        if self.stage > 1:
            raise CdmppError("zero.stage is 2, which DeepSpeed does not support in a pipeline: take stage 1")
        if self.is_megatron and self.overlap:
            raise CdmppError(
                "zero.overlap of Megatron in a pipeline, where only its first rank has several buckets, is not "
                "supported: give overlap false"
            )
        return self

    @property
    def ends_backward(self) -> bool:
        """True of torch's, whose gradients are those of DistributedDataParallel."""
        return self.overlap and not self.is_deepspeed and not self.is_megatron

    @property
    def exchanges_each_batch(self) -> bool:
        """Return True for stage 2, which keeps no whole gradients."""
        return self.stage > 1

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List exchanges of gradients, and of parameters behind the update; ``CdmppError`` as of ``DDP``."""
        graph.check_alike()
        ranks = self.ranks_of(graph, sizes)
        trained = graph.ranks[0].gradients
        after = {rank.rank: len(rank.ops) - 1 for rank in graph.ranks}
        if self.is_megatron and self.overlap:
            share, ahead = self.gathered_share, self.overlap_param_gather
            found = megatron_exchanges(graph, ranks, share, ahead, _ops_before_last(graph.ranks[0], 0) if ahead else 0)
            whole = self._whole_bytes(trained)[1]
            later = () if ahead else (Exchange("all_gather", whole, after, name="updated parameters"),)
            return (*found, *later)
        if self.is_megatron:
            last = {rank.rank: max(one.ready_after for one in rank.gradients) for rank in graph.ranks}
            size, gathered = self._whole_bytes(trained)
            kind = "all_reduce" if self.framework == "nanotron" else "reduce_scatter"
            return (
                Exchange(kind, size, last, name="gradients"),
                Exchange("all_gather", gathered, after, name="updated parameters"),
            )
        if not self.is_deepspeed:
            sent = [
                Exchange("broadcast", trained[place].bytes, after, name=f"{trained[place].name} updated")
                for place in _sent([one.bytes for one in trained], ranks)
            ]
            return (*DDP(overlap=self.overlap).exchanges(graph, sizes), *sent)
        found, batches, buckets = [], graph.ranks[0].module_batches, self.buckets(graph.ranks[0])
        ready = {rank.rank: {one.name: one.ready_after for one in rank.gradients} for rank in graph.ranks}
        each = list[tuple[int, dict[int, int]]]()
        for bucket in buckets:
            names = [one.name for one in (bucket if self.overlap else trained)]
            last = {rank: max([own[name] for name in names]) for rank, own in ready.items()}
            each.append((sum([one.bytes for one in bucket]), last))
        for number in range(len(batches) if self.stage > 1 else 1):
            earlier = {rank.rank: _ops_before_last(rank, number) if self.stage > 1 else 0 for rank in graph.ranks}
            for place, (size, last) in enumerate(each):
                at = {rank: own - earlier[rank] for rank, own in last.items()}
                found.append(Exchange("all_reduce", size, at, name=f"bucket {place}"))
        return (*found, Exchange("all_gather", _padded_bytes(trained, ranks), after, name="updated parameters"))

    def launches(self, graph: StepGraph, many: Sequence[Mapping[str, int]]) -> Launches | None:
        """List them once: of torch ranks change the order of the broadcasts, of DeepSpeed what is gathered."""
        (rank,), counts = graph.ranks, [math.prod(one.values()) for one in many]
        if self.is_deepspeed:
            found = Launches.of(self.exchanges(graph, many[0])[:-1], len(many))
            padded = [_padded_bytes(rank.gradients, ranks) for ranks in counts]
            return found.then("all_gather", len(rank.ops) - 1, np.array([padded], np.int64))
        if self.is_megatron and self.overlap:
            return super().launches(graph, many)  # ranks change the buckets
        if self.is_megatron:
            found = Launches.of(self.exchanges(graph, many[0])[:-1], len(many))
            gathered = np.full((1, len(many)), self._whole_bytes(rank.gradients)[1], np.int64)
            return found.then("all_gather", len(rank.ops) - 1, gathered)
        found, sizes = DDP(overlap=self.overlap).launches(graph, many), [one.bytes for one in rank.gradients]
        sent = np.array(sizes, np.int64)[np.array([_sent(sizes, ranks) for ranks in counts], np.int64).T]
        return found.then("broadcast", len(rank.ops) - 1, sent)

    def _whole_bytes(self, trained: Sequence[Gradient]) -> tuple[int, int]:
        """Bytes of all gradients, and of all parameters as Megatron gathers them."""
        size = sum(one.bytes for one in trained)
        return size, math.ceil(self.gathered_share * size)

    def buckets(self, rank: RankGraph) -> list[list[Gradient]]:
        """Return buckets of DeepSpeed: as gradients become ready, one closes before it would be too large."""
        found, filled = [list[Gradient]()], 0
        for one in (one for one in rank.ready_order if one.is_used):
            elements = one.bytes // 4
            if found[-1] and filled + elements > self.bucket_elements:
                found.append([])
                filled = 0
            found[-1].append(one)
            filled += elements
        return [bucket for bucket in found if bucket]

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Divide states and the workspace of the update; DeepSpeed copies its part of the parameters, and has buckets.

        Of torch the rank with the largest part counts.
        """
        ranks = math.prod(sizes.values())
        if ranks == 1:
            return super().rank_bytes(held, modules, sizes, batches)
        if self.is_megatron:
            own = super().rank_bytes(held, modules, sizes, batches)
            states, updates = (math.ceil(size / ranks) for size in (held.state_bytes, held.update_bytes))
            return replace(own, state_bytes=states, update_bytes=updates)
        if not self.is_deepspeed:
            own = DDP().rank_bytes(held, modules, sizes, batches)
            parameters = [rows * size for one in modules for rows, size, _ in one.trained_rows or one.rows]
            loads = [sum(parameters[place] for place in part) for part in _parts(parameters, ranks)]
            share = max(loads) / sum(loads) if parameters else 1 / ranks
            return replace(
                own, state_bytes=math.ceil(held.state_bytes * share), update_bytes=math.ceil(held.update_bytes * share)
            )
        part = math.ceil(held.gradient_bytes / ranks)
        return RankBytes(
            held.parameter_bytes + part,
            math.ceil(held.state_bytes / ranks),
            part if self.stage > 1 else held.gradient_bytes,
            math.ceil(held.update_bytes / ranks),
            gathered_bytes=4 * self.bucket_elements * (1 + self.overlap),
        )

    def pipeline_warnings(self, is_forward_first: bool) -> tuple[str, ...]:
        """Say what DistributedDataParallel does, under which torch's runs."""
        return () if self.is_deepspeed or self.is_megatron else DDP().pipeline_warnings(is_forward_first)

    def memory_warnings(self) -> tuple[str, ...]:
        """Say that the buckets of DeepSpeed are there whatever the model is, and where another size is set."""
        if not self.is_deepspeed:
            return ()
        many, by_default = 1 + self.overlap, type(self)().bucket_elements
        whose = "DeepSpeed's own default" if self.bucket_elements == by_default else "as the plan says"
        return (
            f"zero {self.stage} of DeepSpeed holds {many} bucket{'s' * self.overlap} of {self.bucket_elements:,} "
            f"elements ({whose}), {quantity(4 * many * self.bucket_elements, 'B')}, however small the model is; "
            "--bucket-mb is of ddp and does not change them, bucket_elements of a plan file does",
        )

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        return {
            "stage": f"stage {self.stage}",
            "framework": "of DeepSpeed" if self.is_deepspeed else f"of {self.framework or 'torch'}",
            "gathered_share": f"gathers {self.gathered_share:g} bytes for each of a gradient",
            "overlap_param_gather": "parameters are gathered " + ("ahead" if self.overlap_param_gather else "at once"),
            "bucket_elements": f"buckets of {self.bucket_elements:,} elements",
        }.get(setting) or super().describe(setting)

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Wrap the optimizer, or write DeepSpeed's settings."""
        if self.is_megatron:
            more = " --overlap-grad-reduce" * self.overlap + " --overlap-param-gather" * self.overlap_param_gather
            other = "" if self.overlap else "; nanotron: zero_stage: 1"
            return (f"# Megatron-LM: --use-distributed-optimizer{more}{other}",)
        if not self.is_deepspeed:
            return (
                *DDP().torch_lines(axes),
                f"optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class={optimizer}, lr=1e-3"
                + (f", process_group={axes}.get_group())" if axes else ")"),
            )
        settings = {
            "stage": self.stage, "overlap_comm": self.overlap, "reduce_bucket_size": self.bucket_elements,
        }  # fmt: skip
        return (
            f"model, optimizer, *_ = deepspeed.initialize(model=model, config={{'zero_optimization': {settings}}})",
        )


def _ops_before_last(rank: RankGraph, number: int) -> int:
    """The ops of a batch stand so many places before those of the last one."""
    own, last = rank.module_batches[number], rank.module_batches[-1]
    return rank.modules[last[0]].forward[0] - rank.modules[own[0]].forward[0]


def _padded_bytes(trained: Sequence[Gradient], ranks: int) -> int:
    """Bytes of all parameters as DeepSpeed pads them."""
    elements = sum(one.bytes // 4 for one in trained)
    return 4 * math.ceil(elements / (2 * ranks)) * 2 * ranks


def _sent(sizes: Sequence[int], ranks: int) -> list[int]:
    """Places of parameters in the order in which the ranks that updated them send them."""
    return [place for part in _parts(sizes, ranks) for place in part]


def _parts(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    return _divided(tuple(sizes), ranks)


@lru_cache(maxsize=512)
def _divided(sizes: tuple[int, ...], ranks: int) -> list[list[int]]:
    """Places of what each rank that updates any does: the largest first, each to the rank that has least."""
    count = min(ranks, len(sizes))  # others have nothing
    found: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, rank) for rank in range(count)]
    for place in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        load, least = loads[0]
        found[least].append(place)
        heapq.heapreplace(loads, (load + sizes[place], least))
    return found

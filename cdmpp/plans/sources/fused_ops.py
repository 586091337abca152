"""Fused ops: kernels that only move memory, between products of blocks, as ``torch.compile`` makes few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cdmpp.plans.sources.source import OpExchange
from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import Op, RankGraph

FUSED = ("elementwise", "reduce", "softmax", "norm")
"""Kinds of ops that Inductor writes kernels for; products and attention stay those of libraries."""


@dataclass(frozen=True)
class FusedOps:
    """Ops of the blocks of a rank in groups, each of which is one kernel.

    Ops are in one group if one reads what another wrote, or both read the same, and no product, attention or exchange
    lies between them. A kernel reads once what others wrote, and writes what others read.
    """

    rank: RankGraph
    exchanges: Sequence[OpExchange]
    has_loss: bool = False
    """True if the loss is compiled too: what comes behind the last block, up to its gradient."""

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Places of the first and the last op of all blocks, of the forward and of the backward pass."""
        blocks = [one for one in self.rank.modules if not one.is_kept]
        if not blocks:
            return ()
        passes = [one.forward for one in blocks], [one.backward for one in blocks if one.in_backward]
        return tuple((min(first for first, _ in each), max(last for _, last in each)) for each in passes if each)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return ``blocks``, with the loss where that is compiled."""
        if not self.has_loss or not self.blocks:
            return self.blocks
        phases = [op.phase for op in self.rank.ops]
        forward, *backward = self.blocks
        last = len(phases) - 1 - phases[::-1].index("forward")
        return ((forward[0], last), *((last + 1, end) for _, end in backward))

    def is_within(self, place: int) -> bool:
        """Return True for an op of a block."""
        return any(first <= place <= last for first, last in self.blocks)

    def read(self, place: int) -> tuple[int, ...]:
        """Return the places of what an op reads; what runs again reads what it did at first, and holds more."""
        op = self.rank.ops[place]
        if not op.is_recomputed or op.forward is None:
            return op.inputs
        own = {*self.rank.ops[op.forward].inputs}
        return tuple(one for one in op.inputs if one in own or self.rank.ops[one].forward in own)

    @cached_property
    def arriving(self) -> dict[int, list[OpExchange]]:
        """Place of an op -> exchanges that it waits for."""
        found = dict[int, list[OpExchange]]()
        for one in self.exchanges:
            for place in one.before:
                found.setdefault(place, []).append(one)
        return found

    def is_apart(self, source: int, place: int) -> bool:
        """Return True if an exchange lies between two ops, of which the second reads what the first wrote."""
        return any(source <= one.after < place for one in self.arriving.get(place, ()))

    def is_fused(self, place: int) -> bool:
        """Return True for an op that a compiler may put together with others."""
        op = self.rank.ops[place]
        is_compiled = any(first <= place <= last for first, last in self.spans)
        return op.kind in FUSED and op.phase != "update" and is_compiled

    @cached_property
    def groups(self) -> dict[int, int]:
        """Place of an op that may be fused -> the first place of its group."""
        ops, levels, roots = self.rank.ops, [0] * len(self.rank.ops), dict[int, int]()
        readers = dict[tuple[int, int, str], int]()

        def root(place: int) -> int:
            while roots[place] != place:
                roots[place] = roots[roots[place]]
                place = roots[place]
            return place

        for place in range(len(ops)):
            own, edges = self.is_fused(place), self.read(place)
            for one in edges:
                is_next = not (own and self.is_fused(one)) or self.is_apart(one, place)
                levels[place] = max(levels[place], levels[one] + is_next)
            if not own:
                continue
            roots[place] = place
            for one in edges:
                joined = [one] if one in roots and levels[one] == levels[place] else []
                key = one, levels[place], ops[place].phase
                joined += [readers[key]] if key in readers else []
                readers.setdefault(key, place)
                for other in joined:
                    first, second = sorted((root(other), root(place)))
                    roots[second] = first
        return {place: root(place) for place in roots}

    @cached_property
    def moved_bytes(self) -> dict[int, int]:
        """First place of a group -> bytes that its kernel reads and writes."""
        ops, groups = self.rank.ops, self.groups
        outside = dict[int, dict[int, int]]()
        for place, group in groups.items():
            read = outside.setdefault(group, {})
            for one in self.read(place):
                if groups.get(one) != group:
                    read[one] = max(read.get(one, 0), _result_bytes(ops[one]))
            for sent in self.arriving.get(place, ()):
                if sent.kind == "all_gather":  # it has what all ranks sent
                    read[-place] = max(read.get(-place, 0), sent.bytes)
        found = {group: sum(read.values()) for group, read in outside.items()}
        for place in self.kept:
            if place in groups:
                found[groups[place]] += max(_result_bytes(ops[place]), self._sent_bytes.get(place, 0))
        return found

    @cached_property
    def _sent_bytes(self) -> dict[int, int]:
        """Place of an op -> bytes that it writes for a reduce-scatter, of which it keeps a part."""
        return {one.after: one.bytes for one in self.exchanges if one.kind == "reduce_scatter"}

    @cached_property
    def kept(self) -> frozenset[int]:
        """Places of ops whose results lie in memory: somebody else reads them, or they are gradients."""
        groups, found = self.groups, {one.ready_after for one in self.rank.gradients}
        found |= {one.after for one in self.exchanges}
        read = set[int]()
        for place in range(len(self.rank.ops)):
            for one in self.read(place):
                read.add(one)
                if groups.get(one) != groups.get(place):
                    found.add(one)
        return frozenset(found | {place for place in groups if place not in read})

    @cached_property
    def _read_again(self) -> dict[int, tuple[int, ...]]:
        """Place of an op of a block that runs again -> what it reads or holds, without what nobody reads again.

        So the partitioner of AOTAutograd has it, also where a policy of selective checkpointing says that a result must
        be saved; without a compiler such a result is saved for nothing.
        """
        ops, backward = self.rank.ops, [place for place, op in enumerate(self.rank.ops) if op.phase == "backward"]
        read = {source for place in backward for source in self.read(place)}
        return {
            place: tuple(one for one in ops[place].inputs if one in read)
            for place in backward
            if ops[place].is_recomputed and self.is_within(place)
        }

    def rank_at(self, byte_s: float, launch_s: float) -> RankGraph:
        """Return the rank with the seconds and bytes of fused kernels, which are never slower than single ones.

        Args:
            byte_s: seconds of a byte that a large kernel moves.
            launch_s: least seconds of a kernel.
        """
        ops, groups, kept = list(self.rank.ops), self.groups, self.kept
        single_s = dict[int, float]()
        for place, group in groups.items():
            single_s[group] = single_s.get(group, 0.0) + ops[place].duration_s
        shares = {
            group: min(max(self.moved_bytes[group] * byte_s, launch_s) / seconds, 1.0) if seconds else 1.0
            for group, seconds in single_s.items()
        }
        for place, group in groups.items():
            op = ops[place]
            in_memory = {} if place in kept else {"output_bytes": 0, "saved_bytes": 0, "result_bytes": 0}
            in_memory |= {} if place in kept else {"own_saved_bytes": 0, "gradient_bytes": 0}
            seconds = op.duration_s * shares[group]
            ops[place] = derived(op, duration_s=seconds, gap_s=0.0, delay_s=0.0, workspace_bytes=0, **in_memory)
        for place, inputs in self._read_again.items():
            ops[place] = derived(ops[place], inputs=inputs)
        return derived(self.rank, ops=tuple(ops))


def _result_bytes(op: Op) -> int:
    return op.output_bytes if op.result_bytes is None else op.result_bytes

"""UnlikeQuestion: which way to train a network on devices that differ, and which of them holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.plans.candidates import VALID, Candidates
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.unlike.arranged import Arranged
from cdmpp.plans.unlike.arrangement import MOST, arrangements
from cdmpp.plans.unlike.block import Block, UnlikeCandidates, UnlikeJudged, joined
from cdmpp.units import quantity


@dataclass(frozen=True)
class UnlikeQuestion(Question):
    """Its source has the work on each device, and its topology places ranks.

    Each device has a limit of memory of its own: ``memory_limit_bytes`` is not asked.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    """Device -> ranks on it."""
    memory_limits: Mapping[str, float] = field(default_factory=dict)
    """Device -> bytes that it may hold; a device that is not there has no limit."""
    even_shares: bool = False
    """True if replicas have equal shares of the batch, as Megatron and torchtitan give them."""
    gpus: frozenset[str] = frozenset()
    """Devices of which the allocator of a GPU counts."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, UnlikeSource) or (lacking := set(self.counts) - set(self.source.sources)):
            raise CdmppError(f"nothing tells what ranks take on {', '.join(sorted(lacking))}")
        if sum(self.counts.values()) != self.ranks:
            raise CdmppError(f"{sum(self.counts.values())} devices for {self.ranks} ranks: give one a rank")

    @cached_property
    def _judges(self) -> dict[str, Judge]:
        assert isinstance(self.source, UnlikeSource)
        return {name: Judge(self.source.sources[name], name in self.gpus) for name in self.counts}

    @cached_property
    def _topology(self) -> Any:
        return self.topology(self.ranks)

    def judged(self, ranks: int | None = None, names: tuple[str, ...] | None = None) -> Judged:
        """Return all plans on all arrangements of the devices; ``CdmppError`` for another number of them."""
        if ranks not in (None, self.ranks):
            raise CdmppError(f"the devices are {self.ranks}, and {ranks} are asked for")
        key = self.ranks, self.names if names is None else names
        if key not in self._judged:
            self._judged[key] = self._judge_all(self._candidates(*key))
        return self._judged[key]

    def leading(self, ranks: int, names: tuple[str, ...]) -> Judged:
        """Return all plans, judged; ``CdmppError`` as of it."""
        return self.judged(ranks, names)

    def at_batches(self, global_batches: Sequence[int]) -> tuple[Question, ...]:
        """Ask the same at several global batches, each judged when it is asked for."""
        return tuple(replace(self, global_batch=one, _judged={}) for one in global_batches)

    def _judge_all(self, plans: Candidates) -> Judged:
        made = [Block.invalid(plans)]
        every, which = np.unique(plans.degrees, axis=0, return_inverse=True)
        cut_short = False
        for number in range(len(every)):
            rows = np.flatnonzero((which.ravel() == number) & (plans.reason == VALID))
            if not len(rows):
                continue
            degrees = plans.degrees_of(int(rows[0]))
            found, is_all = arrangements(self.counts, degrees)
            cut_short |= not is_all
            blocks, why = list[Block](), _UNEVEN.format(self._said(degrees))
            for one in found:
                devices = one.of_ranks(degrees)
                try:
                    self._topology.placed(devices)
                except CdmppError as error:
                    why = str(error)
                else:
                    own = Arranged(self._judges, self._topology, self.memory_limits, degrees, one, devices)
                    blocks += own.blocks(plans.taken(rows), self.even_shares)
            made += blocks or [Block.refused(plans, rows, why)]
        told = f"devices are tried in up to {MOST} arrangements for each division: others may be faster"
        return joined(made, self.inputs_s, (told,) if cut_short else ())

    def _said(self, degrees: ParallelDegrees) -> int:
        return degrees.ranks // (degrees.pp * degrees.size("dp_replicate", "dp_shard"))

    def lacks(self, judged: Judged) -> str:
        """Say how many bytes the plan lacks that lacks least on any device."""
        assert isinstance(judged, UnlikeJudged)
        short = np.where(np.isnan(judged.costs.step_s), np.inf, judged.short)
        row, limits = (
            int(short.argmin()),
            (f"{name} {quantity(most, 'B')}" for name, most in self.memory_limits.items()),
        )
        name = judged.plans.combinations[int(judged.plans.combination[row])].name
        return (
            f"no plan fits: devices may hold {', '.join(limits)}, and the leanest plan, {name} on "
            f"{self.ranks} devices, lacks {quantity(float(short[row]), 'B')} on one of them; take more devices, more "
            "micro-batches, fsdp, or stages that are recomputed"
        )

    def plan(self, plans: Candidates, row: int) -> Plan:
        """Make the plan of one row."""
        found = super().plan(plans, row)
        if not isinstance(plans, UnlikeCandidates) or plans.variant[row] < 0:
            return found
        variant = plans.variants[int(plans.variant[row])]
        dividing = tuple(
            replace(one, cuts=variant.cuts) if isinstance(one, Pipeline) else one for one in found.model_parallel
        )
        return replace(found, model_parallel=dividing, devices=variant.devices, shares=variant.shares)


_UNEVEN = "each {} ranks that divide the same operators need equal devices, of which there are other numbers"

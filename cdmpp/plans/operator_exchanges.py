"""OperatorExchanges: what ranks that divide operators exchange in one step of a job, and what an update asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdmpp.plans.clipped_norms import norm_sums
from cdmpp.plans.groups import on_groups
from cdmpp.plans.placement import Placement
from cdmpp.plans.sources.source import OpExchange
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START, Exchange


@dataclass(frozen=True)
class OperatorExchanges:
    """Ranks along the degrees that divide operators take part."""

    job: Placement

    def of_operators(self) -> Iterator[Exchange]:
        """Exchanges of divided operators, for each micro-batch, stage after stage."""
        for kind, step in enumerate(self.job.steps):
            own = self.job.of_kind(kind)
            last, parts = max(one.number for one in step.passes), self.job.on(self.job.kinds[kind].device).parts
            for one in step.passes:
                part = parts[one.stage].of(one.number == last, one.is_divided)
                for found in part.operators:
                    if part.rank.ops[found.before[0]].phase == one.kind:
                        after = one.begin - 1 if found.after == START else one.places[found.after]
                        before = tuple(one.places[place] for place in found.before)
                        yield from self._placed(found, dict.fromkeys(own, after), dict.fromkeys(own, before))

    def of_updates(self, shards: float, follow: bool) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
        """Return exchanges between passes and update, once a step, of gradients of which ranks have parts of a sum.

        A gradient that Adam's moments and their product read, so that ranks sum it up three times, is read once by a
        plan's fused kernel; clipping reads it once before.

        Args:
            shards: a rank updates one of so many parts of each gradient.
            follow: whether they wait for the exchanges of the replicas.

        Returns:
            Those that clipping reads, and those that the update reads.
        """
        clipped, updated = list[Exchange](), list[Exchange]()
        is_clipped = self.job.work.is_clipped
        for kind, step in enumerate(self.job.steps):
            own = self.job.of_kind(kind)
            ends = dict.fromkeys(own, step.update - 1), dict.fromkeys(own, (step.update,))
            for found in self._of_updates(kind):
                count = len(found)
                kept = count - 2 if self.job.plan.update == "fused" and count >= 3 else count
                for number, one in enumerate(found[:kept]):
                    size = math.ceil(one.bytes / shards)
                    made = self._placed(replace(one, bytes=size, follows=follow), *ends)
                    (clipped if is_clipped and number == 0 else updated).extend(made)
        return tuple(clipped), tuple(updated)

    def _of_updates(self, kind: int) -> list[list[OpExchange]]:
        """Exchanges of each gradient that ranks of one kind have parts of, as often as it is read."""
        parts, found = self.job.on(self.job.kinds[kind].device).parts, dict[tuple[int, str], list[OpExchange]]()
        for stage in dict.fromkeys(one.stage for one in self.job.steps[kind].passes):
            for one in parts[stage].last.operators:
                if one.is_of_update:
                    found.setdefault((stage, one.name), []).append(one)
        return [*found.values()]

    def with_sums(self, replicas: Sequence[Exchange]) -> Iterator[Exchange]:
        """Put the sum of each gradient of which ranks have parts before the exchange of its module's gradients.

        FSDP2 sums them up, one after the other, as it collects the gradients of a module, which then follow. They have
        a queue of their own: that of the operators is in the order of the list, where later ones stand before them.
        """
        sums = dict[str, list[OpExchange]]()
        for kind, step in enumerate(self.job.steps):
            places = {one.stage: one.places for one in step.passes}  # of the last micro-batch
            for found in self._of_updates(kind):
                sums.setdefault(self._module(kind, found[0], places), []).append(found[0])
        for one in replicas:
            own = sums.pop(one.name.removesuffix(" of replicas").removesuffix(" gradients"), [])
            if own:
                others = [other for other in replicas if other.name == one.name]
                ends = {rank: after for other in others for rank, after in other.after.items()}
                before = {rank: (after + 1,) for rank, after in ends.items()}
                for each in own:
                    for made in self._placed(each, ends, before):
                        yield replace(made, group=f"{each.degree}, sums")
            yield replace(one, follows=True) if own else one
        assert not sums, f"no module has the gradients of {[*sums]}"

    def _module(self, kind: int, one: OpExchange, places: Mapping[int, Mapping[int, int]]) -> str:
        """Name the module that a gradient is of, by the op that makes it."""
        parts = self.job.on(self.job.kinds[kind].device).parts
        stages = [stage for stage in places if one in parts[stage].last.operators]
        modules = parts[stages[0]].last.rank.modules
        held = [each for each in modules if not each.is_kept and each.backward[0] <= one.after <= each.backward[1]]
        return (held or [each for each in modules if each.is_kept])[0].name

    def of_norms(self) -> Iterator[Exchange]:
        """Yield what ranks exchange for the norm over all gradients; each waits for all that came before."""
        job, degrees = self.job, self.job.plan.degrees
        sizes = {name: getattr(degrees, name) for name in job.plan.replicating}
        each = [
            [*norm_sums(job.plan.strategy, job.plan.model_parallel, degrees, step.rank.gradients, sizes)]
            for step in job.steps
        ]
        most = max(map(len, each))
        numbered = [{most - len(own) + number: found for number, found in enumerate(own)} for own in each]
        for number in range(most):  # that of the pipeline is the last one of all
            for found in dict.fromkeys(own[number] for own in numbered if number in own):
                kinds = [kind for kind, own in enumerate(numbered) if own.get(number) == found]
                ends = {rank: job.steps[kind].update for kind in kinds for rank in job.of_kind(kind)}
                after = {rank: place - 1 for rank, place in ends.items()}
                before = {rank: (place,) for rank, place in ends.items()}
                one = Exchange("all_reduce", found[0], after, before, "norms of gradients", follows=True)
                yield from on_groups(one, found[1], job.mesh, job.places)

    def _placed(
        self, found: OpExchange, after: Mapping[int, int], before: Mapping[int, tuple[int, ...]]
    ) -> Iterator[Exchange]:
        """The exchange in each group along its degree; a message from each rank to its neighbour, if it has one.

        Collectives have a process group of their own, also where it has the same ranks as that of the replicas.
        """
        if found not in self._made:
            group = "" if found.shift else found.degree
            self._made[found] = Exchange(
                found.kind, found.bytes, {}, name=found.name, group=group, follows=found.follows
            )
        one = derived(self._made[found], after=after, before=before)
        if not found.shift:
            yield from on_groups(one, (found.degree,), self.job.mesh, self.job.places)
            return
        for pair, alike in self._messages(found).items():
            if pair[0] in after:
                own = {place: after[place] for place in pair}, {place: before[place] for place in pair}
                members = self._slowest(found, [*alike.values()])
                yield derived(one, after=own[0], before=own[1], group=f"{pair[0]}->{pair[1]}", members=members)

    @cached_property
    def _made(self) -> dict[OpExchange, Exchange]:
        return {}

    @cached_property
    def _known(self) -> dict[object, dict[tuple[int, int], dict[object, tuple[int, int]]]]:
        return {}

    def _messages(self, found: OpExchange) -> dict[tuple[int, int], dict[object, tuple[int, int]]]:
        """Return sender and receiver of the graph -> how messages lie in the nodes -> the first such one of the job."""
        key = found.degree, found.shift, found.span, found.is_ring
        if key not in self._known:
            made = dict[tuple[int, int], dict[object, tuple[int, int]]]()
            for group in self.job.mesh.groups(found.degree):
                for members in found.pairs(group):
                    pair = self.job.places[members[0]], self.job.places[members[1]]
                    made.setdefault(pair, {}).setdefault(self.job.topology.shape(members), members)
            self._known[key] = made
        return self._known[key]

    def _slowest(self, found: OpExchange, messages: list[tuple[int, int]]) -> tuple[int, int]:
        """Return the message that takes longest of a ring, in which each waits for the one before; else the first."""
        if not found.is_ring or len(messages) == 1:
            return messages[0]
        size = np.array([found.bytes])
        return max(messages, key=lambda one: float(self.job.topology.latency_s(found.kind, size, one)[0]))

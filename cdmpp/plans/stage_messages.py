"""StageMessages: what the stages of a pipeline send each other in one step of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cdmpp.plans.placement import Placement
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, WEIGHTS


@dataclass(frozen=True)
class StageMessages:
    """Each chain of ranks that pass micro-batches on to each other has messages of its own."""

    job: Placement

    def all(self) -> Iterator[Exchange]:
        """Yield the messages between stages, those of each direction in the order in which they are sent.

        The last one of each stage to the one before it follows the exchanges of its last backward pass.
        """
        if isinstance(self.job.order, LoopedSchedule):
            for chain in self.job.chains:
                yield from self._posted(chain, self.job.order)
            return
        for chain in self.job.chains:
            for stage in range(len(chain) - 1):
                sent, returned = self.job.stages[stage].sent_bytes, self.job.stages[stage + 1].returned_bytes
                for source, target, kind, sizes in (
                    (stage, stage + 1, FORWARD, sent),
                    (stage + 1, stage, BACKWARD, returned),
                ):
                    yield from self._sent(chain, source, target, kind, sizes)

    def _posted(self, chain: tuple[int, ...], order: LoopedSchedule) -> Iterator[Exchange]:
        """Messages of a schedule whose receives are posted ahead, rank after rank as each sends them.

        What a turn sends leaves when it has ended; the step ends once all is sent.
        """
        steps, kind = [self.job.step_of(rank) for rank in chain], self.job.kind(chain[0])
        many, batches = kind.many, kind.batches
        lists = order.lists(self.job.plan.degrees.pp, many)
        starts = [
            {(one.kind == FORWARD, one.stage, one.number): one.begin for one in step.passes if one.kind != WEIGHTS}
            for step in steps
        ]
        for rank, step in enumerate(steps):
            passes = iter(step.passes)
            for number in range(batches):
                for turn in lists.turns[rank]:
                    own = [next(passes) for _ in turn]
                    left = max(one.averaged if self.job.ends_backward else one.end for one in own)
                    left = max(left, own[-1].end)
                    for action in turn:
                        message = lists.message(action)
                        if message is None or not lists.is_sent(message):
                            continue
                        target, is_forward = lists.owners[message.stage], message.kind == FORWARD
                        stage, batch = self.job.stages[action.stage], number * many
                        begin = starts[target][is_forward, message.stage, batch + message.micro_batch]
                        turned = number * len(steps[target].passes) // batches + lists.posts[message]
                        posted = steps[target].passes[turned].begin - 1
                        members = chain[rank], chain[target]
                        sender, receiver = (self.job.places[one] for one in members)
                        for size in stage.sent_bytes if is_forward else stage.returned_bytes:
                            yield derived(
                                self._message(size, sender, receiver, members),
                                after={sender: left, receiver: posted},
                                before={receiver: (begin,), sender: (step.update,)},
                                name=f"{message.kind} to stage {message.stage}, micro-batch "
                                f"{batch + action.micro_batch}",
                            )

    def _sent(
        self, chain: tuple[int, ...], source: int, target: int, kind: str, sizes: tuple[int, ...]
    ) -> Iterator[Exchange]:
        is_ahead = self.job.pipeline is not None and self.job.pipeline.overlap
        members = chain[source], chain[target]
        sender, receiver = (self.job.places[rank] for rank in members)
        step, passes = self.job.step_of(members[0]), self.job.step_of(members[1]).passes
        taken = {one.number: at for at, one in enumerate(passes) if one.kind == kind}
        last = max(at for at, one in enumerate(step.passes) if one.kind == kind)
        for at, one in enumerate(step.passes):
            if one.kind != kind:
                continue
            place = taken[one.number]
            posted = passes[max(place - 1, 0) if is_ahead else place].begin - 1
            before = {receiver: (passes[place].begin,)}
            if not is_ahead:
                before[sender] = (step.turn(at),)
            for size in sizes:
                yield derived(
                    self._message(size, sender, receiver, members),
                    after={sender: one.end, receiver: posted},
                    before=before,
                    name=f"{kind} to stage {target}, micro-batch {one.number}",
                    follows=kind == BACKWARD and at == last,
                )

    def _message(self, size: int, sender: int, receiver: int, members: tuple[int, int]) -> Exchange:
        """Return a message of so many bytes between two ranks of the graph, which stand for ``members``."""
        key = size, sender, receiver, members
        if key not in self._made:
            group = f"{sender}->{receiver}"
            self._made[key] = Exchange("send_recv", size, {}, group=group, members=members)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[object, Exchange]:
        return {}

"""StreamTasks: what the workers of a partition run under its schedule, as tasks of the event engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cdmpp.partition.chain import Chain
from cdmpp.partition.devices import pair_link
from cdmpp.partition.stream import Stream
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action

UPDATE, SENT, RETURNED, HANDED = "update", "sent", "returned", "handed over"
"""Kinds of tasks next to passes: an update; results on their way to the next stage; gradients on their way back; what
the host of the sender has to do with either while they are on their way."""


class StreamKey(NamedTuple):
    """A key names a task: a pass or a message of a micro-batch, or the update after it."""

    kind: str
    stage: int
    """The stage that sends, where the task is a message."""
    number: int
    """Micro-batch; of an update the last one of which it has the gradient."""

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Worker(NamedTuple):
    """A worker runs one task at a time."""

    stage: int
    replica: int
    side: str = ""
    """``forward`` or ``backward`` where the two passes of a stage have a worker each."""

    def __str__(self) -> str:
        replica = f"replica {self.replica}" if self.replica else ""
        return " ".join(filter(None, (f"stage {self.stage}", replica, self.side)))


class Channel(NamedTuple):
    """Messages of one direction between two devices go one after another."""

    kind: str
    sender: Worker
    receiver: Worker


@dataclass(frozen=True)
class StreamTasks:
    """Tasks of so many micro-batches, a whole number of steps where the schedule flushes.

    With ``overlap`` messages go while both ends compute, and share the links of their devices in each direction.
    Without it sender and receiver do nothing else meanwhile, and a sender goes on once its message is there.
    """

    chain: Chain
    count: int

    @property
    def _overlaps(self) -> bool:
        return self.chain.problem.overlap

    @property
    def _splits(self) -> bool:
        return self.chain.problem.schedule.passes_side_by_side

    @property
    def _stream(self) -> Stream:
        return Stream(self.chain.problem.schedule, self.chain.problem.micro_batches, self.count)

    def worker(self, stage: int, number: int, kind: str) -> Worker:
        """Return the worker that runs a pass of a micro-batch, or the update with its gradient."""
        side = (FORWARD if kind == FORWARD else BACKWARD) if self._splits else ""
        return Worker(stage, number % self.chain.parts[stage].replicas, side)

    @cached_property
    def rates(self) -> Mapping[str, float]:
        """Bytes a second of each link."""
        found = dict[str, float]()
        for stage, one in enumerate(self.chain.parts):
            beta_s = self.chain.link(stage).beta_s
            for replica in range(one.replicas if beta_s else 0):
                found |= {f"stage {stage}.{replica} {way}": 1 / beta_s for way in ("out", "in")}
        return found

    def actions(self, stage: int) -> Iterator[Action]:
        """List the passes of a stage, those of each replica in its order."""
        replicas = self.chain.parts[stage].replicas
        ranks = self.chain.problem.ranks(self.chain.devices_after[stage], replicas)
        return self._stream.actions(stage, ranks, replicas)

    def tasks(self) -> list[Task]:
        """Return all tasks."""
        return [task for stage in range(len(self.chain.parts)) for task in self._stage(stage)]

    def _stage(self, stage: int) -> Iterator[Task]:
        cost, last = self.chain.costs[stage], len(self.chain.parts) - 1
        before, updates = dict[Worker, Key](), set[StreamKey]()
        live = cost.live * self.chain.parts[stage].replicas
        for _, kind, number in self.actions(stage):
            worker, key = self.worker(stage, number, kind), StreamKey(kind, stage, number)
            after = [before[worker]] if worker in before else []
            if kind == FORWARD:
                after += [StreamKey(SENT, stage - 1, number)] if stage else []
                after += [self._freed(stage, number)] if self._splits and number >= live else []
            else:
                after.append(StreamKey(FORWARD, stage, number))
                after += [StreamKey(RETURNED, stage + 1, number)] if stage < last else []
            seconds = cost.forward_s + cost.copy_s if kind == FORWARD else cost.backward_s
            yield Task(key, seconds, (worker,), tuple(dict.fromkeys(after)), label=kind)
            before[worker] = key
            target = stage + 1 if kind == FORWARD else stage - 1
            if 0 <= target <= last:
                yield (message := self._message(key, stage, target))
                before[worker] = key if self._overlaps else message.key
                if cost.send_s:
                    yield (handed := self._handed(key, target))
                    before[worker] = handed.key
            if kind == BACKWARD and number in (lasts := self._lasts(stage, number)):
                update = StreamKey(UPDATE, stage, lasts[-1])
                if update not in updates:
                    updates.add(update)
                    yield self._update(update, lasts)
                before[worker] = update

    def _freed(self, stage: int, number: int) -> StreamKey:
        """Return the update after which a micro-batch has room, and whose weights its forward pass takes."""
        before = number - self.chain.costs[stage].live * self.chain.parts[stage].replicas
        return StreamKey(UPDATE, stage, self._lasts(stage, before)[-1])

    def _lasts(self, stage: int, number: int) -> Sequence[int]:
        return self._stream.lasts(number, self.chain.parts[stage].replicas)

    def _update(self, key: StreamKey, lasts: Sequence[int]) -> Task:
        workers = tuple(self.worker(key.stage, one, BACKWARD) for one in lasts)
        after = tuple(StreamKey(BACKWARD, key.stage, one) for one in lasts)
        return Task(key, self.chain.costs[key.stage].update_s, workers, after, label=UPDATE)

    def _handed(self, key: StreamKey, target: int) -> Task:
        """Make what keeps a worker from its next pass behind one with a message to the stage ``target``."""
        is_sent = key.kind == FORWARD
        many = self.chain.costs[min(key.stage, target)].messages[not is_sent]
        own = key._replace(kind=f"{SENT if is_sent else RETURNED}, {HANDED}")
        worker = self.worker(key.stage, key.number, key.kind)
        return Task(own, many * self.chain.costs[key.stage].send_s, (worker,), (key,), label=HANDED)

    def _message(self, key: StreamKey, stage: int, target: int) -> Task:
        """Make the message to the stage ``target`` after a pass: its results, or its gradients to the stage before."""
        is_sent = key.kind == FORWARD
        cost = self.chain.costs[min(stage, target)]
        many, size = cost.messages[not is_sent], cost.message_bytes[not is_sent]
        own = key._replace(kind=SENT if is_sent else RETURNED)
        ends = self.worker(stage, key.number, key.kind), self.worker(target, key.number, key.kind)
        pair = pair_link(self.chain.link(stage), self.chain.link(target))
        if not self._overlaps:
            seconds = many * pair.alpha_s + size * pair.beta_s
            return Task(own, seconds, ends, (key,), priority=-1, label=own.kind)
        names = [f"stage {one.stage}.{one.replica} {way}" for one, way in zip(ends, ("out", "in"), strict=True)]
        links = tuple(name for name in names if name in self.rates)
        flow = Flow(size, links) if size and links else None
        return Task(own, many * pair.alpha_s, (Channel(own.kind, *ends),), (key,), flow=flow, label=own.kind)

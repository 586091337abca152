"""The spans that several ranks have of one exchange, brought together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.steps.exchange import peers_of
from cdmpp.trace.clock import Order
from cdmpp.trace.rank_trace import Exchange, RankTrace, StepTrace

_ALL_WAIT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that end nowhere before they have begun everywhere."""


@dataclass(frozen=True)
class MatchedCollective:
    """One exchange, as each rank saw it."""

    kind: str
    bytes: int
    group: str
    spans: Mapping[int, Exchange]
    """Rank -> its part."""

    @property
    def arrival_s(self) -> float:
        """Seconds at which the last rank was there."""
        return max(span.start_s for span in self.spans.values())

    @property
    def end_s(self) -> float:
        """Seconds at which the last rank was done, or the receiver of a message: the sender may look later."""
        return max(span.end_s for rank, span in self.spans.items() if self.peers is None or rank == self.peers[1])

    @property
    def peers(self) -> tuple[int, int] | None:
        """Sender and receiver of a message; None for a collective."""
        return peers_of(self.kind, self.group)

    @property
    def sender_blocked(self) -> bool:
        """True if a message was under way before its sender went on; else it lay in a buffer."""
        if self.peers is None or self.peers[0] not in self.spans:
            return True
        return self.spans[self.peers[0]].end_s - self.arrival_s > self.wire_s / 2

    @property
    def wire_s(self) -> float:
        """Without waiting for anyone: from the latest arrival to the end."""
        return max(self.end_s - self.arrival_s, 0.0)

    def wait_s(self, rank: int) -> float:
        """Seconds for which ``rank`` waited until the last one came."""
        return self.arrival_s - self.spans[rank].start_s


def matched(step: Mapping[int, StepTrace]) -> tuple[MatchedCollective, ...]:
    """Exchanges of one step, rank -> its trace; the n-th of a group, kind and size is the same one on all ranks.

    Raises:
        DataError: ranks of a group that do not have equally many.
    """
    found: dict[tuple, dict[int, Exchange]] = defaultdict(dict)
    for rank, trace in step.items():
        seen: Counter = Counter()
        for one in trace.exchanges:
            key = (one.group, one.kind, one.bytes)
            found[*key, seen[key]][rank] = one
            seen[key] += 1
    for (group, kind, size, number), spans in found.items():
        wanted = set(peers_of(kind, group) or (spans if group else step))
        if wanted != set(spans):
            lacking = sorted(wanted - set(spans))
            raise DataError(
                f"step {next(iter(step.values())).number}: {kind} of {size} bytes number {number + 1} is in the traces "
                f"of ranks {sorted(spans)} and not in those of {lacking}"
            )
    all_of_them = [MatchedCollective(kind, size, group, spans) for (group, kind, size, _), spans in found.items()]
    return tuple(sorted(all_of_them, key=lambda one: min((s.after, s.start_s) for s in one.spans.values())))


def orders(steps: Sequence[Sequence[MatchedCollective]]) -> Iterator[Order]:
    """Yield what the exchanges of all steps say about the clocks."""
    for number, step in enumerate(steps):
        for place, one in enumerate(step):
            what = f"exchange {place} of traced step {number} ({one.kind}, {one.bytes} bytes)"
            for first, begun in one.spans.items():
                for then, ended in one.spans.items():
                    if first != then and _holds(one, first, then):
                        yield Order(
                            first, begun.start_s, f"the begin of {what}", then, ended.end_s, f"the end of {what}"
                        )


def _holds(one: MatchedCollective, first: int, then: int) -> bool:
    """True if ``then`` cannot end before ``first`` has begun."""
    if one.kind in _ALL_WAIT:
        return True
    return one.peers == (first, then)


def common_steps(traces: Sequence[RankTrace]) -> list[dict[int, StepTrace]]:
    """Steps that all ranks have and in which each did the same as in most of its steps, rank -> trace.

    Raises:
        DataError: no such step.
    """
    usual = {t.rank: Counter(step.signature for step in t.steps).most_common(1)[0][0] for t in traces}
    by_number = [{step.number: step for step in trace.steps if step.signature == usual[trace.rank]} for trace in traces]
    numbers = sorted(set.intersection(*(set(steps) for steps in by_number)))
    if not numbers:
        raise DataError("no step is in the traces of all ranks with the same operators: trace them at the same steps")
    return [{t.rank: steps[number] for t, steps in zip(traces, by_number, strict=True)} for number in numbers]

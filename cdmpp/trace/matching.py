"""The spans that several ranks have of one exchange, brought together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdmpp.errors import DataError
from cdmpp.steps.exchange import peers_of
from cdmpp.trace.clock import Order
from cdmpp.trace.rank_trace import Exchange, RankTrace, StepTrace
from cdmpp.trace.usual_work import UsualWork, usual_in_order, usual_work
from cdmpp.units import percent

_MOST_LEFT_OUT = 0.5
"""Share of the time of all steps that may be in fewer than half of them."""
_UNEVEN = ("all_to_all", "send_recv", "gather", "scatter")
"""Kinds in which ranks may give different numbers of bytes."""
_LIST = re.compile(r"\[([0-9]{1,9}(?:, *[0-9]{1,9})*)\]$")
_ALL_WAIT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that end nowhere before they have begun everywhere."""


@dataclass(frozen=True)
class MatchedCollective:
    """This is one exchange, as each rank saw it."""

    kind: str
    bytes: int
    group: str
    spans: Mapping[int, Exchange]
    """Rank -> its part."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return group, kind and bytes, these 0 where they differ by rank and step; the n-th of one key is the same."""
        return _key(self)

    @property
    def arrival_s(self) -> float:
        """The last rank was there at this second."""
        return max(span.start_s for span in self.spans.values())

    @property
    def end_s(self) -> float:
        """The last rank was done at this second, or the receiver of a message: the sender may look later."""
        return max(span.end_s for rank, span in self.spans.items() if self.peers is None or rank == self.peers[1])

    @property
    def peers(self) -> tuple[int, int] | None:
        """These are sender and receiver of a message; None for a collective."""
        return peers_of(self.kind, self.group)

    def held_sender(self, begun_s: float) -> bool:
        """Return True if its sender went on when most of it had moved since ``begun_s``; else it lay in a buffer."""
        if self.peers is None or self.peers[0] not in self.spans:
            return True
        return self.spans[self.peers[0]].end_s - begun_s > (self.end_s - begun_s) / 2

    @property
    def wire_s(self) -> float:
        """It takes so long without waiting for anyone: from the latest arrival to the end."""
        return max(self.end_s - self.arrival_s, 0.0)

    def wait_s(self, rank: int) -> float:
        """Return the seconds for which ``rank`` waited until the last one came."""
        return self.arrival_s - self.spans[rank].start_s


def matched(
    step: Mapping[int, StepTrace], is_partial: bool = False, is_apart: bool = False
) -> tuple[MatchedCollective, ...]:
    """Match exchanges of a step, rank -> its trace, by group, kind and sequence number.

    Where exchanges of a group and kind have no such number, the n-th of a size is the same on all ranks.

    With ``is_partial`` other ranks have no trace, so that one rank may have it with them; with ``is_apart`` each has
    all of its own with them.

    Raises:
        DataError: ranks of a group that do not have equally many.
    """
    found: dict[tuple, dict[int, Exchange]] = defaultdict(dict)
    uncounted = {(one.group, one.kind) for trace in step.values() for one in trace.exchanges if not _is_counted(one)}
    for rank, trace in step.items():
        seen: Counter = Counter()
        for one in trace.exchanges:
            key = (*_key(one), None) if (one.group, one.kind) in uncounted else (one.group, one.kind, 0, one.sequence)
            found[*key, (rank, seen[key]) if is_apart else seen[key]][rank] = one
            seen[key] += 1
    for (group, kind, size, sequence, number), spans in found.items():
        wanted = set(peers_of(kind, group) or _members(group) & set(step) or (spans if group else step))
        if wanted != set(spans) and not is_partial:
            lacking = sorted(wanted - set(spans))
            what = f"of {size} bytes number {number + 1}" if sequence is None else f"with sequence number {sequence}"
            raise DataError(
                f"step {next(iter(step.values())).number}: {kind} {what} is in the traces of ranks {sorted(spans)} and "
                f"not in those of {lacking}"
            )
    all_of_them = [
        MatchedCollective(kind, max(one.bytes for one in spans.values()), group, spans)
        for (group, kind, *_), spans in found.items()
    ]
    on_host = all(trace.host_s is None for trace in step.values())
    return tuple(
        sorted(all_of_them, key=lambda one: min((s.after if on_host else 0, s.start_s) for s in one.spans.values()))
    )


def _members(group: str) -> set[int]:
    """The ranks of a group that ends with a list of them all, such as ``0[0, 1]``."""
    found = _LIST.search(group)
    return set(map(int, found[1].split(","))) if found else set()


def _is_counted(one: Exchange) -> bool:
    """True for a number that is the same on all ranks; messages are counted by each rank for itself."""
    return one.sequence is not None and one.kind != "send_recv"


def order_doubts(steps: Sequence[Mapping[int, StepTrace]]) -> list[str]:
    """Say how many collectives of devices are matched across ranks by nothing but their order."""
    if len(steps[0]) == 1 or any(one.host_s is None for one in steps[0].values()):
        return []
    every = [one for step in steps for trace in step.values() for one in trace.exchanges if one.kind != "send_recv"]
    plain = sum(not _is_counted(one) for one in every)
    if not plain:
        return []
    return [
        f"{plain:,} of {len(every):,} collectives have no sequence number: they are matched across ranks by their "
        "order among those of the same group, kind and size"
    ]


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


@dataclass(frozen=True)
class CommonSteps:
    """These steps are answered from."""

    steps: Sequence[Mapping[int, StepTrace]]
    """Rank -> its trace of the step."""
    usual: Mapping[int, UsualWork]
    """Rank -> what at least half of them have."""
    warnings: Sequence[str] = ()


def common_steps(traces: Sequence[RankTrace]) -> CommonSteps:
    """Find the steps that all ranks have, and what they have in common.

    Operators of a host count where each rank did the same as in most steps. Steps of a device count all; where less
    than half of their time is in common, only that of median length.

    Raises:
        DataError: no such step.
    """
    steps = whole_steps(traces)
    if not steps:
        raise DataError("no step is in the traces of all ranks with the same operators: trace them at the same steps")
    whole, doubts = len(steps), []
    if any(one.host_s is None for one in steps[0].values()):
        usual = {t.rank: Counter(step.signature for step in t.steps).most_common(1)[0][0] for t in traces}
        steps = [step for step in steps if all(one.signature == usual[rank] for rank, one in step.items())]
        if not steps:
            raise DataError("no step has the same operators on all ranks: trace them at the same steps")
        if len(steps) < whole:
            doubts.append(f"{whole - len(steps)} of {whole} steps did other work and are left out")
        return CommonSteps(steps, _usual(steps), doubts)
    found, each = _usual(steps), _lengths(steps)
    unlike, count, left_s, lacking = set[int](), 0, 0.0, 0
    for work in found.values():
        keys = [[_key(one) for one in step.exchanges] for step in work.steps]
        columns = usual_in_order(keys, reference_step(steps))
        for number, step in enumerate(work.steps):
            missing = sum(column[number] is None for column in columns)
            other = len(keys[number]) - len(columns) + missing
            count += len(work.left_out[number]) + other
            lacking += len(work.lacking[number]) + missing
            left_s += sum(step.ops[place].end_s - step.ops[place].start_s for place in work.left_out[number])
            if work.left_out[number] or work.lacking[number] or other or missing:
                unlike.add(number)
    if not unlike:
        return CommonSteps(steps, found)
    total_s = sum(op.end_s - op.start_s for step in steps for one in step.values() for op in one.ops)
    share = left_s / total_s if total_s else 1.0
    said = f"steps differ in their work: {len(unlike)} of {whole} have other operators than the usual step"
    if share > _MOST_LEFT_OUT:
        chosen = median_length(steps)
        doubt = f"{said}, and {percent(share)} of their time is in fewer than half of them: {chosen.warnings[0]}"
        return replace(chosen, warnings=[doubt])
    doubts = [
        f"{said}, which is the median of work that at least half have; {count:,} operators and exchanges, "
        f"{percent(share)} of the operators' time of all steps, are in fewer and left out; {lacking:,} of the usual "
        f"ones are missing in some (ms of each: {each})"
    ]
    return CommonSteps(steps, found, doubts)


def median_length(steps: Sequence[Mapping[int, StepTrace]]) -> CommonSteps:
    """Return the step of median length alone, with a warning that says so."""
    chosen = steps[reference_step(steps)]
    doubt = f"step {_number(chosen)}, of median length, is answered from (ms of each: {_lengths(steps)})"
    return CommonSteps([chosen], _usual([chosen]), [doubt])


def _lengths(steps: Sequence[Mapping[int, StepTrace]]) -> str:
    return ", ".join(f"{_number(step)}: {1e3 * length_s(step):.4g}" for step in steps)


def _usual(steps: Sequence[Mapping[int, StepTrace]]) -> dict[int, UsualWork]:
    reference = reference_step(steps)
    return {rank: usual_work([step[rank] for step in steps], reference) for rank in steps[0]}


def reference_step(steps: Sequence[Mapping[int, StepTrace]]) -> int:
    """Return the number of the step of median length, the shorter one of two."""
    return sorted(range(len(steps)), key=lambda n: length_s(steps[n]))[(len(steps) - 1) // 2]


def whole_steps(traces: Sequence[RankTrace]) -> list[dict[int, StepTrace]]:
    """Return the steps that all ranks have, rank -> trace."""
    by_number = [{step.number: step for step in trace.steps} for trace in traces]
    numbers = sorted(set.intersection(*(set(steps) for steps in by_number)))
    return [{t.rank: steps[number] for t, steps in zip(traces, by_number, strict=True)} for number in numbers]


def length_s(step: Mapping[int, StepTrace]) -> float:
    """Return the seconds of a step, mean over ranks."""
    return sum(one.end_s - one.start_s for one in step.values()) / len(step)


def _key(one: Exchange | MatchedCollective) -> tuple[str, str, int]:
    return one.group, one.kind, 0 if one.kind in _UNEVEN else one.bytes


def _number(step: Mapping[int, StepTrace]) -> int:
    return next(iter(step.values())).number

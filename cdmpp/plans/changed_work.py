"""The work of a rank as a plan changes it: parts of the forward pass run twice, several batches, one update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from cdmpp.steps.work import Operation, RankWork, Unit


def can_recompute(work: RankWork) -> tuple[Unit, ...]:
    """Units that stand for themselves: no other one's forward pass meets theirs. The root meets all and is none.

    Nor is one that is recomputed already, as the model itself asks for it.
    """
    again = [place for place, one in enumerate(work.operations) if one.is_recomputed]
    parts = [
        unit for unit in work.units
        if not unit.is_kept and not any(unit.backward[0] <= place <= unit.backward[1] for place in again)
    ]  # fmt: skip
    return tuple(
        unit for unit in parts if not any(other is not unit and _meet(unit.forward, other.forward) for other in parts)
    )


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def order(work: RankWork, recomputed: Collection[str]) -> list[tuple[int, bool]]:
    """Places of the operations as they run, and whether it is for the second time: before a unit's backward pass."""
    again: dict[int, list[Unit]] = {}
    for unit in work.units:
        if unit.name in recomputed:
            again.setdefault(unit.backward[0], []).append(unit)
    found = list[tuple[int, bool]]()
    for place in range(len(work.operations)):
        for unit in again.get(place, ()):
            inside = range(unit.forward[0], unit.forward[1] + 1)
            found += [(one, True) for one in inside if work.operations[one].phase == "forward"]
        found.append((place, False))
    return found


def with_recomputed(work: RankWork, recomputed: Collection[str]) -> RankWork:
    """Forward operations of these units run again, as part of the backward pass."""
    if not recomputed:
        return work
    runs = order(work, recomputed)
    moved = {place: number for number, (place, again) in enumerate(runs) if not again}
    copies, operations = dict[int, int](), list[Operation]()
    for number, (place, again) in enumerate(runs):
        one = work.operations[place]
        after = tuple(copies.get(other, moved[other]) if again else moved[other] for other in one.after)
        operations.append(replace(one, after=after, phase="backward" if again else one.phase))
        if again:
            copies[place] = number
    first = {unit.name: min(copies[place] for place in range(unit.forward[0], unit.forward[1] + 1) if place in copies)
             for unit in work.units if unit.name in recomputed}  # fmt: skip
    units = tuple(
        replace(
            _moved(unit, lambda place: moved[place]),
            backward=(first.get(unit.name, moved[unit.backward[0]]), moved[unit.backward[1]]),
        )
        for unit in work.units
    )
    gradients = tuple(replace(one, ready_after=moved[one.ready_after]) for one in work.gradients)
    return replace(work, operations=tuple(operations), gradients=gradients, units=units)


def with_micro_steps(work: RankWork, count: int) -> RankWork:
    """Forward and backward pass of ``count`` batches; the gradients of the last are exchanged, as sums of all."""
    if count == 1:
        return work
    passes = [place for place, one in enumerate(work.operations) if one.phase != "update"]
    operations = list[Operation]()
    for _ in range(count - 1):
        begin = len(operations)
        places = {place: begin + number for number, place in enumerate(passes)}
        operations += [_after(work.operations[place], places) for place in passes]
        next_batch = replace(operations[-1], name="next batch", kind="", phase="forward", after=())
        operations.append(replace(next_batch, duration_s=work.start_s, gap_s=0.0))
    shift = len(operations)
    places = {place: shift + place for place in range(len(work.operations))}
    operations += [_after(one, places) for one in work.operations]
    gradients = tuple(replace(one, ready_after=shift + one.ready_after) for one in work.gradients)
    units = tuple(_moved(unit, lambda place: shift + place) for unit in work.units)
    return replace(work, operations=tuple(operations), gradients=gradients, units=units)


def can_fuse_update(work: RankWork) -> bool:
    """Whether there are several updates, on one stream, behind all else, with pauses of the host between them."""
    updates = [place for place, one in enumerate(work.operations) if one.phase == "update"]
    tail = list(range(len(work.operations) - len(updates), len(work.operations)))
    if len(updates) < 2 or updates != tail or len({work.operations[place].stream for place in updates}) > 1:
        return False
    return any(work.operations[place].gap_s for place in updates[:-1])


def with_fused_update(work: RankWork) -> RankWork:
    """One kernel that takes as long as all updates, without the pauses of the host between them."""
    updates = [one for one in work.operations if one.phase == "update"]
    rest = work.operations[: len(work.operations) - len(updates)]
    after = tuple(sorted({other for one in updates for other in one.after if other < len(rest)}))
    duration_s = sum(one.duration_s for one in updates)
    fused = replace(updates[-1], name="update of all", duration_s=duration_s, after=after)
    return replace(work, operations=(*rest, fused))


def kept_gathered(work: RankWork) -> RankWork:
    """All units stay gathered from the forward to the backward pass."""
    return replace(work, units=tuple(replace(unit, is_kept=True) for unit in work.units))


def _after(one: Operation, places: dict[int, int]) -> Operation:
    return replace(one, after=_known(one.after, places))


def _known(after: Iterable[int], places: dict[int, int]) -> tuple[int, ...]:
    return tuple(places[other] for other in after if other in places)


def _moved(unit: Unit, to: Callable[[int], int]) -> Unit:
    (a, b), (c, d) = unit.forward, unit.backward
    return replace(unit, forward=(to(a), to(b)), backward=(to(c), to(d)))

"""Recompute: forward ops of FSDP modules run again in the backward pass, so that nothing inside is saved.

They stop early, as ``torch.utils.checkpoint(use_reentrant=False)`` does: once the last result that the backward pass
reads is there.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping
from typing import Any

from cdmpp.steps.derived import derived
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited


def can_recompute(rank: RankGraph) -> tuple[ModuleSpan, ...]:
    """List modules whose forward pass meets that of no other. The root meets all and is none of them.

    A module that is recomputed already, as the model itself asks for it, is none either.
    """
    again = [place for place, op in enumerate(rank.ops) if op.is_recomputed]
    parts = [
        one for one in rank.modules
        if not one.is_kept and one.in_backward
        and not any(one.backward[0] <= place <= one.backward[1] for place in again)
    ]  # fmt: skip
    met, furthest = set[int](), None
    for number in sorted(range(len(parts)), key=lambda one: parts[one].forward):
        first, last = parts[number].forward
        if furthest is not None and first <= parts[furthest].forward[1]:
            met |= {furthest, number}
        if furthest is None or last > parts[furthest].forward[1]:
            furthest = number
    return tuple(one for number, one in enumerate(parts) if number not in met)


def recompute(graph: StepGraph, modules: Collection[str]) -> StepGraph:
    """Run forward ops of these modules again before, and as part of, their backward pass, as far as it needs them."""
    if not modules:
        return graph
    return edited(graph, lambda rank: _edit(rank, modules))


def run_order(rank: RankGraph, modules: Collection[str]) -> list[tuple[int, bool]]:
    """Return places of the ops as they run, and whether for the second time, with these ``modules`` recomputed."""
    if not modules:
        return [(place, False) for place in range(len(rank.ops))]
    again, readers = dict[int, list[ModuleSpan]](), _last_readers(rank)
    for one in rank.modules:
        if one.name in modules:
            again.setdefault(one.backward[0], []).append(one)
    runs = list[tuple[int, bool]]()
    for place in range(len(rank.ops)):
        for module in again.get(place, ()):
            runs += [(inside, True) for inside in _again_places(rank, module, readers)]
        runs.append((place, False))
    return runs


def _edit(rank: RankGraph, modules: Collection[str]) -> Edit:
    runs = run_order(rank, modules)
    places = {place: number for number, (place, is_again) in enumerate(runs) if not is_again}
    copies, ops = dict[int, int](), list[Op]()
    latest = ChainMap(copies, places)
    for number, (place, is_again) in enumerate(runs):
        op = rank.ops[place]
        forward = None if op.forward is None else places[op.forward]
        waits = tuple([(latest if is_again else places)[other] for other in op.waits]) if op.waits else ()
        moved: dict[str, Any] = {
            "waits": waits,
            "inputs": tuple([latest[other] for other in op.inputs]),
            "held": tuple([latest[other] for other in op.held]),
            "forward": forward,
        }
        if is_again:
            moved |= {"phase": "backward", "forward": places[place]}
            copies[place] = number
        ops.append(derived(op, **moved))
    kept = [places[place] for place in range(len(rank.ops))]
    readers = _last_readers(rank)
    again = {one.name: _again_places(rank, one, readers) for one in rank.modules if one.name in modules}
    begins = {name: copies[own[0]] for name, own in again.items() if own}
    return Edit(tuple(ops), kept, kept, begins)


def again_places(rank: RankGraph, module: ModuleSpan) -> list[int]:
    """Return places of a module's forward ops that run again: all up to the last whose result is read later.

    All of them where nobody knows what ops read.
    """
    return _again_places(rank, module, _last_readers(rank))


def _again_places(rank: RankGraph, module: ModuleSpan, readers: Mapping[int, int] | None) -> list[int]:
    inside = [place for place in range(module.forward[0], module.forward[1] + 1) if rank.ops[place].phase == "forward"]
    if readers is None:
        return inside
    last = max((place for place in inside if readers.get(place, -1) >= module.backward[0]), default=-1)
    return [place for place in inside if place <= last]


def _last_readers(rank: RankGraph) -> dict[int, int] | None:
    """Op -> the last op of the backward pass that reads its result; None where nobody knows what ops read."""
    if not any(op.inputs for op in rank.ops):
        return None
    return {source: place for place, op in enumerate(rank.ops) if op.phase == "backward" for source in op.inputs}

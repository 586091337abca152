"""Cuts of a pipeline by rules of frameworks, which count the blocks of a decoder and not their time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import CutPlaces


def block_cuts(on: CutPlaces, count: int, counts_head: bool) -> tuple[int, ...]:
    """Return the places of the ops with which the second and later stages begin.

    Args:
        on: the rank.
        count: number of stages.
        counts_head: False: each stage has as many blocks. True: blocks and head count by their parameters, and a stage
            ends with the first that exceeds its share of all of them. The last one may have the head and no block; of
            many, the last two may have the cast of the scores and the loss.

    Raises:
        CdmppError: blocks that do not divide, or a stage of nothing.
    """
    blocks = sorted((one for one in on.rank.modules if not one.is_kept), key=lambda one: one.forward)
    if not counts_head:
        if not blocks or len(blocks) % count:
            raise CdmppError(f"pipeline: {len(blocks)} blocks do not divide among {count} stages, which have as many")
        each = [len(blocks) // count] * count
    else:
        inside, outside = [0] * len(blocks), 0
        for one in on.rank.gradients:  # bytes of gradients: those of modules may be of another type
            own = next((place for place, block in enumerate(blocks) if _is_in(one.name, block.name)), None)
            if own is None:
                outside = max(outside, one.bytes)
            else:
                inside[own] += one.bytes
        each = shared_out([*inside, outside, 0, 0], count)
    if not all(each):
        raise CdmppError(f"pipeline: {count} stages of {len(blocks)} blocks, of which one would be empty")
    behind = [one for one in on.layers if one > blocks[-1].forward[1]]
    begins = [on.named(one.name) for one in blocks[1:]]
    if behind:
        last = on.forward.index(behind[-1])
        begins += [on.best(blocks[-1].forward[1], behind[0]), *on.forward[last + 1 : last + 3]]
    return tuple(begins[begun - 1] for begun in itertools.accumulate(each[:-1]))


def shared_out(pieces: Sequence[int], count: int) -> list[int]:
    """Return how many pieces of a network, which count so much, each of ``count`` stages takes, in their order."""
    total, found, stage, passed = sum(pieces), [0] * count, 0, 0
    for one in pieces:
        found[stage] += 1
        passed += one
        if passed * count > total * (stage + 1) and stage < count - 1:
            stage += 1
    return found


def _is_in(parameter: str, module: str) -> bool:
    return parameter.startswith(f"{module}.")

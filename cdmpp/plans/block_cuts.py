"""Cuts of a pipeline by rules of frameworks, which count the blocks of a decoder and not their time."""

from __future__ import annotations

from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import CutPlaces


def block_cuts(on: CutPlaces, count: int, counts_head: bool) -> tuple[int, ...]:
    """Return the places of the ops with which the second and later stages begin.

    Args:
        on: the rank.
        count: number of stages.
        counts_head: False: each stage has as many blocks. True: blocks and head count by their parameters, and a stage
            ends with the first that exceeds its share of all of them; it may have the head and no block.

    Raises:
        CdmppError: blocks that do not divide, or a stage of nothing.
    """
    blocks = sorted((one for one in on.rank.modules if not one.is_kept), key=lambda one: one.forward)
    if not counts_head:
        if not blocks or len(blocks) % count:
            raise CdmppError(f"pipeline: {len(blocks)} blocks do not divide among {count} stages, which have as many")
        each = [len(blocks) // count] * count
    else:
        outside = [one.bytes for one in on.rank.gradients if not any(_is_in(one.name, own.name) for own in blocks)]
        each = shared_out([one.bytes for one in blocks], max(outside, default=0), count)
    found, begun = list[int](), 0
    for many in each[:-1]:
        begun += many
        if begun < len(blocks):
            found.append(on.named(blocks[begun].name))
        else:
            behind = [one for one in on.layers if one > blocks[-1].forward[1]]
            found.append(on.best(blocks[-1].forward[1], behind[0]))
    if len(set(found)) < len(found) or 0 in each[:-1]:
        raise CdmppError(f"pipeline: {count} stages of {len(blocks)} blocks, of which one would be empty")
    return tuple(found)


def shared_out(blocks: list[int], head: int, count: int) -> list[int]:
    """Return the blocks of each of ``count`` stages where blocks and head count so much; the last has the head."""
    total, found, stage, passed = sum(blocks) + head, [0] * count, 0, 0
    for one in blocks:
        found[stage] += 1
        passed += one
        if passed * count > total * (stage + 1) and stage < count - 1:
            stage += 1
    return found


def _is_in(parameter: str, module: str) -> bool:
    return parameter.startswith(f"{module}.")

"""Cuts of a pipeline by rules of frameworks, which count the blocks of a decoder and not their time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.steps.module_span import ModuleSpan


def block_cuts(on: CutPlaces, count: int, counts_head: bool) -> tuple[int, ...]:
    """Return the places of the ops with which the second and later stages begin.

    Args:
        on: the rank.
        count: number of stages.
        counts_head: False: each stage has as many blocks. True: blocks and head count by their parameters, as
            ``cut_by_products`` says. The last stage may have the head and no block; of many, the last may have the
            cast of the scores and the loss alone.

    Raises:
        CdmppError: blocks that do not divide, or a stage of nothing.
    """
    blocks = sorted((one for one in on.rank.modules if not one.is_kept), key=lambda one: one.forward)
    begins = [on.named(one.name) for one in blocks[1:]] + _begins_behind(on, blocks)
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
        each = cut_by_products(inside, outside, count, len(begins) + 1 - len(blocks))
    if not all(each):
        raise CdmppError(f"pipeline: {count} stages of {len(blocks)} blocks, of which one would be empty")
    return tuple(begins[begun - 1] for begun in itertools.accumulate(each[:-1]))


def cut_by_products(blocks: Sequence[int], head: int, count: int, behind: int = 4) -> list[int]:
    """Return how many pieces of a decoder each of ``count`` stages takes, in their order, as nanotron cuts.

    A stage ends with the piece that reaches its share of all products. The head counts where the norm before it
    stands. nanotron's code of December 2024 says so but for two things, which first ranks' memory and the pace of
    pipelines of 1 and 3 billion parameters in its sweep of 2025 tell: a share that is just reached is full, and the
    head is not with the norm. With the scores sent to a stage of the loss, these jobs could not have been so quick.

    Args:
        blocks: what each block counts.
        head: the same of the head.
        count: number of stages.
        behind: pieces behind the blocks: the norm, the head, the cast of the scores, the loss.
    """
    pieces = [*blocks, head, *[0] * (behind - 1)]
    total, found, stage, passed = sum(pieces), [0] * count, 0, 0
    for one in pieces:
        found[stage] += 1
        passed += one
        if passed * count >= total * (stage + 1) and stage < count - 1:
            stage += 1
    return found


def _begins_behind(on: CutPlaces, blocks: Sequence[ModuleSpan]) -> list[int]:
    """Return where each piece behind the blocks begins; a norm without parameters is one with the head."""
    layers = [one for one in on.layers if blocks and one > blocks[-1].forward[1]]
    if not layers:
        return []
    last = on.forward.index(layers[-1])
    norm = on.best(blocks[-1].forward[1], layers[0])
    return [norm, *layers[-1:] * (len(layers) > 1), *on.forward[last + 1 : last + 3]]


def _is_in(parameter: str, module: str) -> bool:
    return parameter.startswith(f"{module}.")

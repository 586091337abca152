"""Pieces of a large language model on one rank: its embedding, one of its equal blocks, its head, and its update.

Two blocks and their neighbours are read; a stage of a pipeline is made of as many copies as it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.network.eager.single_price import KERNEL_S
from cdmpp.plans.sources.source import RankWork
from cdmpp.steps.module_span import ModuleSpan

Floats = NDArray[np.float64]
READ_BLOCKS = 3
"""Blocks of the network that is read: the one in the middle has blocks on both sides."""
_NOWHERE = np.iinfo(np.int64).max
EMBEDDING, BLOCK, HEAD = "embedding", "block", "head"


@dataclass(frozen=True)
class Exchange:
    """Ranks that divide layers exchange this in one pass."""

    kind: str
    """A key of ``collective.KINDS``."""
    bytes: int
    times: int = 1


@dataclass(frozen=True)
class Pass:
    """One piece in one direction: its ops, in order."""

    device_s: Floats
    """Seconds of each op on the device."""
    host_s: Floats
    """Seconds in which the host dispatches each op."""
    exchanges: tuple[Exchange, ...] = ()

    def then(self, other: Pass) -> Pass:
        """Return this pass and another one after it."""
        both = (np.concatenate(pair) for pair in ((self.device_s, other.device_s), (self.host_s, other.host_s)))
        return Pass(*both, (*self.exchanges, *other.exchanges))


@dataclass(frozen=True)
class Piece:
    """The embedding, a block or the head."""

    forward: Pass
    backward: Pass

    def recomputed(self) -> Piece:
        """Return the piece of which the forward pass runs again in the backward pass."""
        return replace(self, backward=self.forward.then(self.backward))


@dataclass(frozen=True)
class Pieces:
    """All of them, for one size of a micro-batch, of one rank."""

    each: Mapping[str, Piece]
    """``EMBEDDING``, ``BLOCK`` and ``HEAD``."""
    update_s: float
    """Seconds of the update of one parameter."""

    @cached_property
    def recomputed(self) -> Pieces:
        """Return the same with blocks that run forward again in the backward pass."""
        return Pieces({**self.each, BLOCK: self.each[BLOCK].recomputed()}, self.update_s)


def pieces_of(
    work: RankWork,
    element_bytes: int,
    exchanges: Callable[[str, str], Sequence[Exchange]],
    token_ranks: int = 1,
) -> Pieces:
    """Take the work of one rank with ``READ_BLOCKS`` equal blocks apart.

    Args:
        work: of a micro-batch; ``dispatch_s`` is known.
        element_bytes: of a parameter.
        exchanges: piece and phase -> what ranks that divide layers exchange there.
        token_ranks: ranks that each have some of the tokens in front of products of columns and behind those of rows.

    Raises:
        DataError: the network has another number of blocks, or blocks of unlike ops.
    """
    blocks = sorted((one for one in work.rank.modules if not one.is_kept), key=lambda one: one.forward)
    if len(blocks) != READ_BLOCKS or not work.dispatch_s:
        raise DataError(f"expected {READ_BLOCKS} equal blocks and the times of the host, and got {len(blocks)} blocks")
    place_of = _places(work, blocks)
    seconds, host_s = np.array([op.duration_s for op in work.rank.ops]), np.array(work.dispatch_s)
    if token_ranks > 1:
        own = _outside(work, place_of)
        seconds[own] = np.maximum(seconds[own] / token_ranks, KERNEL_S)
    each = dict[str, Piece]()
    for name, number in ((EMBEDDING, 0), (BLOCK, 2), (HEAD, READ_BLOCKS + 1)):
        passes = dict[str, Any]()
        for phase in ("forward", "backward"):
            own = place_of == number if phase == "forward" else place_of == -1 - number
            passes[phase] = Pass(seconds[own], host_s[own], tuple(exchanges(name, phase)))
        each[name] = Piece(**passes)
    is_update = np.array([op.phase == "update" for op in work.rank.ops])
    parameters = sum(one.bytes for one in work.rank.gradients) / element_bytes
    return Pieces(each, float(seconds[is_update].sum()) / parameters)


def _places(work: RankWork, blocks: Sequence[ModuleSpan]) -> NDArray[np.int64]:
    """Piece of each op: 0 the embedding, then the blocks, then the head; -1 less that number in the backward pass.

    A block's ops begin with the first that reads one of its parameters.
    """
    starts = [one.forward[0] for one in blocks]
    length = starts[-1] - starts[-2]
    if starts[1] - starts[0] != length:
        raise DataError("blocks that do not run as many ops as each other cannot be repeated")
    edges = np.array([*starts, starts[-1] + length])
    found = np.full(len(work.rank.ops), _NOWHERE)
    for place, op in enumerate(work.rank.ops):
        if op.phase == "forward":
            found[place] = np.searchsorted(edges, place, side="right")
        elif op.phase == "backward" and op.forward is not None:
            found[place] = -1 - found[op.forward]
    return found


def _outside(work: RankWork, place_of: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Ops that are not between a product of columns and the product of rows that follows it, nor such products.

    Linear products of a piece are of columns and of rows in turn.
    """
    found, products = np.zeros(len(work.rank.ops), bool), dict[int, int]()
    for place, op in enumerate(work.rank.ops):
        piece = int(place_of[place])
        if op.phase == "forward":
            is_product = op.kind == "dense"
            found[place] = not is_product and products.get(piece, 0) % 2 == 0
            products[piece] = products.get(piece, 0) + is_product
        elif op.phase == "backward" and op.forward is not None:
            found[place] = found[op.forward]
    return found

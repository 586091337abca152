"""Learning: where the gradient of a call's result goes, and what autograd keeps for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from cdmpp.network.eager.formula import Formula
from cdmpp.operators.operator import EagerOperator
from cdmpp.programs.regions import Recomputed


class Factor(NamedTuple):
    """A factor is an operand of a product."""

    sources: frozenset[int]
    """Places as in ``Learning``; ``weights`` are numbers as there."""
    weights: frozenset[int]
    elements: int = 0
    """Elements of the operand."""


class Buffer(NamedTuple):
    """Autograd keeps this of the forward pass."""

    place: int
    """Place of the call that wrote it."""
    number: int
    """Number of the buffer."""
    bytes: int


class Part(NamedTuple):
    """A call writes into a part of a tensor (a view of it); autograd's ``CopySlices`` makes the gradient."""

    whole: EagerOperator
    """Copies the gradient of the tensor."""
    part: EagerOperator
    """Copies that of the part, out of the copy or back into it."""
    bytes: int
    """Bytes of the part."""
    sources: frozenset[int]
    """Places, as in ``Learning``, that the gradient of the tensor before it was written into is passed on to."""
    written: frozenset[int]
    """Places that the gradient of what is written is passed on to."""


class Learning(NamedTuple):
    """The gradient of a call's result goes to these receivers; in these regions the call runs again."""

    sources: frozenset[int] = frozenset()
    """Places of the calls whose results it is passed on to: not through ``detach``, nor where gradients are off."""
    weights: frozenset[int] = frozenset()
    """Numbers of the parameters that it is passed on to."""
    again: tuple[Recomputed, ...] = ()
    """Regions around it that ``torch.utils.checkpoint`` recomputes, the outermost first."""
    factors: tuple[Factor, ...] = ()
    """The first factor of a product, the second one, and what is added; empty where they cannot be distinguished."""
    made: tuple[Buffer, ...] = ()
    """Its results."""
    kept: tuple[Buffer, ...] = ()
    """Buffers that the backward pass of the call's operator reads; parameters and inputs are left out."""
    last: str = ""
    """``BEFORE`` or ``AFTER`` the call autograd was handed the last that it keeps of the operator; else empty."""
    backward_bytes: int = 0
    """Most bytes alive while autograd's formulas make its gradients, of a node that ends with this call: the gradient
    that they are given, those they make, and what they write on the way. 0: unknown."""
    formula: Formula | None = None
    """The kernels of its backward pass, where these are known; None: those of ``backward_of``."""
    arguments: tuple[Factor, ...] = ()
    """The tensors that its node is given, in the order of ``Formula.makers``."""
    part: Part | None = None
    """The part of a tensor that it writes into."""
    is_stored: bool = False
    """The policy of a region around it keeps its result, so that it does not run again."""


def together(given: Sequence[Learning]) -> Learning:
    """Return what the gradient of a value that comes from several is passed on to."""
    return Learning(
        frozenset().union(*(one.sources for one in given)), frozenset().union(*(one.weights for one in given))
    )


def trained_places(learning: Sequence[Learning], results: Collection[int]) -> list[bool]:
    """Say of each call whether its result depends on a parameter, and one of ``results`` on its result."""
    tracked = [bool(one.sources or one.weights) for one in learning]
    found = [is_tracked and place in results for place, is_tracked in enumerate(tracked)]
    for place in reversed(range(len(found))):
        for source in learning[place].sources if found[place] else ():
            found[source] = True
    return found

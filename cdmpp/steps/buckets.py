"""Buckets: which gradients are exchanged together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from cdmpp.steps.step_graph import Gradient, RankGraph

USED_ITEM_BYTES = 4
"""Bytes of each number of the map of used parameters, an int32 a parameter."""


class Packed(Protocol):
    """It is packed into a bucket: a gradient, or a buffer of a model."""

    @property
    def bytes(self) -> int:
        """The tensor has so many bytes."""

    @property
    def dtype(self) -> str:
        """The tensor has this data type."""


AnyPacked = TypeVar("AnyPacked", bound=Packed)


def buckets_of(rank: RankGraph, limits: Sequence[int], is_rebuilt: bool = True) -> list[list[Gradient]]:
    """Return the buckets of PyTorch's DistributedDataParallel, in the order in which they leave.

    Args:
        rank: the rank whose gradients are packed.
        limits: bytes that close the first bucket, the next, and so on; the last holds for all that follow.
        is_rebuilt: whether buckets follow the order in which gradients become ready, as from the second step on.
            Otherwise they are filled in the order of the model and leave last to first, so that the first one, which
            may be small, leaves last.
    """
    if is_rebuilt:
        return fill_buckets(rank.ready_order, limits)
    return initial_buckets(rank.gradients, limits)[::-1]


def initial_buckets(tensors: Sequence[AnyPacked], limits: Sequence[int]) -> list[list[AnyPacked]]:
    """Fill buckets as ``fill_buckets`` does; they come in the order of their first tensors."""
    place = {id(one): number for number, one in enumerate(tensors)}
    return sorted(fill_buckets(tensors, limits), key=lambda bucket: place[id(bucket[0])])


def fill_buckets(tensors: Sequence[AnyPacked], limits: Sequence[int]) -> list[list[AnyPacked]]:
    """Fill buckets as PyTorch does: each holds one data type, and is closed once it has as many bytes as its limit.

    Each type goes through the limits by itself. Closed buckets come first, in the order in which they were closed;
    then what is left of each type, that which was seen last first (torch keeps them in an ``unordered_map``).

    Args:
        tensors: in the order in which they are packed.
        limits: as ``buckets_of`` takes them.
    """
    closed, filling = list[list[AnyPacked]](), dict[str, list[AnyPacked]]()
    filled, full = Counter[str](), Counter[str]()
    for one in tensors:
        filling.setdefault(one.dtype, []).append(one)
        filled[one.dtype] += one.bytes
        if filled[one.dtype] >= limits[min(full[one.dtype], len(limits) - 1)]:
            closed.append(filling[one.dtype])
            filling[one.dtype], filled[one.dtype] = [], 0
            full[one.dtype] += 1
    return [*closed, *(bucket for bucket in reversed(filling.values()) if bucket)]

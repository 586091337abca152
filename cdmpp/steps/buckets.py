"""Buckets: which gradients are exchanged together."""

from __future__ import annotations

from collections.abc import Sequence


def fill_buckets(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """Fill buckets as PyTorch's DistributedDataParallel does: one is closed once it has as many bytes as its limit.

    Args:
        sizes: bytes of the gradients, in the order in which they become ready.
        limits: bytes that close the first bucket, the next, and so on; the last holds for all that follow.

    Returns:
        For each bucket, in the order in which they leave, the places of its gradients.
    """
    buckets, filled = list[list[int]](), 0
    for place, size in enumerate(sizes):
        if not buckets or filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(place)
        filled += size
    return buckets

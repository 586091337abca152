"""Blocks of PyTorch's allocator with expandable segments, by the rules of its source, worked out by hand."""

from __future__ import annotations

import random

import pytest

from cdmpp.plans.expandable_segment import ExpandableSegment
from cdmpp.plans.sizes import MIB


@pytest.mark.parametrize(("n_bytes", "pages"), [(1, 1), (20 * MIB, 1), (20 * MIB + 1, 2), (105 * MIB, 6)])
def test_the_range_grows_by_pages(n_bytes, pages):
    segment = ExpandableSegment()
    assert segment.take(n_bytes) == 0
    assert segment.reserved_bytes == pages * 20 * MIB


def test_a_free_block_is_used_before_the_end():
    segment = ExpandableSegment()
    blocks = [segment.take(size * MIB) for size in (30, 10, 40, 10)]
    assert blocks == [0, 30 * MIB, 40 * MIB, 80 * MIB] and segment.reserved_bytes == 100 * MIB
    segment.free(blocks[0])
    segment.free(blocks[2])
    assert segment.take(30 * MIB) == 0  # the smallest that is large enough, though 10 MiB are free at the end
    assert segment.take(10 * MIB) == 40 * MIB  # of the 40, and not the end
    assert segment.take(31 * MIB) == 90 * MIB  # 30 are left in between: the end grows
    assert segment.reserved_bytes == 140 * MIB


def test_free_neighbours_are_joined():
    segment = ExpandableSegment()
    blocks = [segment.take(20 * MIB) for _ in range(3)]
    for one in (blocks[0], blocks[2], blocks[1]):
        segment.free(one)
    assert segment.take(60 * MIB) == 0 and segment.reserved_bytes == 60 * MIB


def test_blocks_never_overlap():
    chosen, segment, held = random.Random(1), ExpandableSegment(), {}
    for _ in range(2000):
        if held and chosen.random() < 0.5:
            segment.free(begin := chosen.choice([*held]))
            del held[begin]
        else:
            size = chosen.randrange(1, 50 * MIB)
            held[segment.take(size)] = size
        ends = sorted(held.items())
        assert all(a + size <= b for (a, size), (b, _) in zip(ends, ends[1:], strict=False))
        assert not ends or sum(ends[-1]) <= segment.reserved_bytes

"""Blocks of PyTorch's allocator, by the rules of its source, worked out by hand."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.caching_allocator import CachingAllocator
from cdmpp.plans.sizes import MIB


@pytest.mark.parametrize(("n_bytes", "segment"), [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
    (11 * MIB, 12 * MIB),
])  # fmt: skip
def test_a_tensor_lies_in_a_segment_of_its_kind(n_bytes, segment):
    allocator = CachingAllocator()
    allocator.take(n_bytes)
    assert allocator.reserved_bytes == allocator.peak_bytes == segment


def test_small_tensors_share_a_segment():
    allocator = CachingAllocator()
    blocks = [allocator.take(513) for _ in range(2048)]
    assert [block.size for block in blocks] == [1024] * 2048  # multiples of 512
    assert allocator.reserved_bytes == 2 * MIB
    allocator.take(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_the_smallest_free_block_is_divided():
    allocator = CachingAllocator()
    large, small = allocator.take(40 * MIB), allocator.take(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.take(20 * MIB) is small
    assert small.size == 20 * MIB and small.after.is_free  # of the 30: 10 are left
    assert allocator.take(9 * MIB) is not large
    assert allocator.reserved_bytes == 70 * MIB


def test_little_that_is_left_is_not_divided():
    """At most 1 MiB of a large block goes with the tensor."""
    allocator = CachingAllocator()
    assert allocator.take(11 * MIB).size == 12 * MIB
    assert allocator.take(11 * MIB - 512).after.size == MIB + 512


def test_gaps_between_tensors_that_stay_cannot_be_joined():
    allocator = CachingAllocator()
    whole = allocator.take(80 * MIB)
    allocator.free(whole)
    parts = [allocator.take(20 * MIB) for _ in range(4)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    allocator.take(40 * MIB)
    assert allocator.reserved_bytes == 120 * MIB
    allocator.free(parts[1])  # joins both of its neighbours
    assert allocator.take(60 * MIB).size == 60 * MIB
    assert allocator.reserved_bytes == 120 * MIB


def test_what_another_stream_used_comes_late():
    allocator = CachingAllocator()
    allocator.free(allocator.take(20 * MIB), late=2)
    allocator.pass_time()
    allocator.take(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.pass_time()
    allocator.free(allocator.take(20 * MIB), late=9)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.wait()
    allocator.take(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_full_device_gets_whole_segments_back_first():
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.free(allocator.take(60 * MIB))
    allocator.free(allocator.take(20 * MIB))
    allocator.take(90 * MIB)
    assert allocator.reserved_bytes == 90 * MIB and allocator.peak_bytes == 90 * MIB
    with pytest.raises(CdmppError, match="do not fit"):
        allocator.take(20 * MIB)


def test_a_full_device_waits_for_what_comes_late():
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.free(allocator.take(60 * MIB), late=100)
    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB

"""What most of the memory is, and what the plan leaves to do about it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.plan import Plan
from cdmpp.plans.shortage import REMEDIES, shortage

PARTS = MemoryParts(parameters=6 * 10**9, gradients=5 * 10**9, optimizer=12 * 10**9, activations=61 * 10**9)


def test_the_largest_parts_are_named_with_their_sizes():
    assert shortage(PARTS, Plan()).startswith(
        "most of it: activations 61.0 GB, optimizer states 12.0 GB and parameters 6.00 GB; what would help: "
    )
    assert shortage(MemoryParts(context=5), Plan()) == (
        "most of it: context of the framework on the GPU 5 B; what would help: a device with more memory"
    )


def test_nothing_is_advised_that_the_plan_has_done():
    free = shortage(PARTS, Plan())
    assert "fewer examples at a time" in free and "blocks that are recomputed" in free
    done = shortage(PARTS, Plan(recompute=("h.0",)), micro_batch=1)
    assert "fewer examples" not in done and "recomputed" not in done and "divided among ranks" in done


@pytest.mark.parametrize("part", [one.name for one in fields(MemoryParts)])
def test_every_part_has_a_remedy(part):
    assert shortage(replace(MemoryParts(), **{part: 7}), Plan()).endswith(REMEDIES[part])

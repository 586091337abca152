"""Eight networks in three precisions: the calls that PyTorch dispatches on a CPU, kind by kind, size by size."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.network.eight_networks import NETWORKS
from tests.network.real_calls import read_calls, real_step

WHOLE_NUMBERS = {"llama": {("cast", 4): 4, ("cast", 12): 4}}
"""Network -> kinds and elements of calls of its forward pass that only PyTorch has: casts of whole numbers, which are
read as copies."""


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-autocast"])
@pytest.mark.parametrize("name", NETWORKS)
def test_calls_types_and_sizes_are_those_that_pytorch_dispatches(name, precision):
    torch.manual_seed(0)
    make, loss = NETWORKS[name]
    model, inputs = make()
    found = read_calls(model, inputs, loss, precision)
    real = real_step(model, inputs, loss, precision)
    assert without_types(real["forward"] - found["forward"]) == WHOLE_NUMBERS.get(name, {})
    assert sum((found["forward"] - real["forward"]).values()) == sum(WHOLE_NUMBERS.get(name, {}).values())
    only_real, only_found = (
        without_types(one["backward"] - other["backward"]) for one, other in ((real, found), (found, real))
    )
    assert (only_real - only_found, only_found - only_real) == ({}, {})


def without_types(calls) -> Counter:
    found: Counter = Counter()
    for (kind, elements, _), count in calls.items():
        found[kind, elements] += count
    return found

"""Eight networks in three precisions: the calls that PyTorch dispatches on a CPU, kind by kind, size by size."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.network.eight_networks import NETWORKS
from tests.network.real_calls import read_calls, real_step

VIEWS = {
    **dict.fromkeys(
        ("bert", "gpt2"), ({("copy", 2304): 4}, {("copy", 768): 6, ("elementwise", 2304): 4})
    ),  # query, key and value: stacked, and copied as one, where they are read as summed and copied one by one
    "vit": (
        {("copy", 3264): 4, ("reduce", 32): 1},
        {("copy", 1088): 5, ("elementwise", 3264): 4},
    ),  # the same, and the first token of all images
    "llama": ({("copy", 768): 4}, {("elementwise", 768): 4}),  # halves of queries: filled up, where they are summed
}
"""Network -> kinds and elements of calls of its backward pass that only PyTorch has, and that only the reading has: the
gradients of views that several read. They move as much to 30 %."""
WHOLE_NUMBERS = {"llama": {("cast", 4): 4, ("cast", 12): 4}}
"""The same of the forward pass: casts of whole numbers, which are read as copies."""


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
    missing, wrong = VIEWS.get(name, ({}, {}))
    only_real, only_found = (
        without_types(one["backward"] - other["backward"]) for one, other in ((real, found), (found, real))
    )
    assert (only_real - only_found, only_found - only_real) == (missing, wrong)


def without_types(calls) -> Counter:
    found: Counter = Counter()
    for (kind, elements, _), count in calls.items():
        found[kind, elements] += count
    return found

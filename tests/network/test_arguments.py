"""Models of several inputs, keyword arguments, and results in dicts and tuples: the same calls, however given."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatched import Log

X, Y, MASK = torch.randn(3, 8), torch.randn(3, 4), torch.rand(3, 8) > 0.5


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x, y=None, *, scale=1.0, mask=None):
        hidden = self.first(x)
        if y is not None:
            hidden = hidden + self.second(y)
        if mask is not None:
            hidden = hidden.masked_fill(mask, 0.0)
        return {"hidden": hidden * scale, "more": (hidden.relu(), [hidden.sum()])}


EXAMPLES = [(X,), (X, Y), {"x": X, "y": Y}, {"x": X, "y": Y, "mask": MASK}, {"x": X, "scale": 2.0}]


def names(read) -> Counter:
    return Counter(str(read.operators[call.task_id]) for call in read.graph.calls)


@pytest.mark.parametrize("example", EXAMPLES, ids=["one", "two", "by name", "keyword", "number"])
def test_products_are_those_of_a_real_run(example):
    model = Several()
    read = read_run(Workload(model, example))
    with torch.no_grad(), Log() as log:
        model(**example) if isinstance(example, dict) else model(*example)
    products = Counter(
        ("product", *one.matmul, "torch.float32")
        for call in read.graph.calls
        if (one := read.operators[call.task_id]).kind.family == "linear"
    )
    assert products == Counter({key: n for key, n in log.seen.items() if key[0] == "product"})
    given = [one for one in (example.values() if isinstance(example, dict) else example) if hasattr(one, "nbytes")]
    assert read.graph.input_bytes == sum(one.nbytes for one in given)
    assert len(read.graph.results) == 3  # of the dict, its tuple and its list


def test_names_and_places_are_the_same_call():
    assert names(read_run(Workload(Several(), (X, Y)))) == names(read_run(Workload(Several(), {"x": X, "y": Y})))


@pytest.mark.parametrize("example", EXAMPLES[:4], ids=["one", "two", "by name", "keyword"])
def test_the_first_result_is_trained(example):
    read = read_step(Workload(Several(), example, mode="training_step", loss="mse"))
    used = {one.name for one in read.step.parameters if one.is_used}
    assert any(name.startswith("first") for name in used)
    assert any(name.startswith("second") for name in used) == (len(example) > 1)

"""Composite operators that have no rule of their own: read as the operators that a real run here dispatches."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from cdmpp.network.eager.read import read_run
from cdmpp.network.workload import Workload
from tests.network.dispatch_log import DispatchLog
from tests.network.dispatched import Log
from tests.network.real_calls import elements_of, kind_of, kinds_run

SHAPE = (4, 8, 16)
PRODUCTS = {
    "three factors": lambda x: torch.einsum("abc,acd,ade->abe", x, x.mT, x),
    "ellipsis": lambda x: torch.einsum("...c,...d->...cd", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([2], [2])),
    "inner": lambda x: torch.inner(x, x[0]),
    "multi_dot": lambda x: torch.linalg.multi_dot((x[0], x[0].T, x[0])),
}
OTHERS = {
    "permuted": lambda x: torch.einsum("abc->cab", x) + 1,
    "type_as": lambda x: x.double().type_as(x),
    "hinge": lambda x: functional.margin_ranking_loss(x, x * 2, x * 3, margin=1.0),
    "divide": lambda x: torch.multiply(torch.divide(x, 2), torch.subtract(x, 1)),
    "greater": lambda x: torch.greater(x, 0).to(x.dtype),
    "stacked": lambda x: torch.hstack((x, x)),
    "tiled": lambda x: x.tile(2, 1, 1),
}


class Of(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", PRODUCTS)
def test_its_products_are_those_that_are_dispatched(name):
    model, x = Of(PRODUCTS[name]), torch.randn(SHAPE)
    with torch.no_grad(), Log() as log:
        model(x)
    read, found = read_run(Workload(model, x), "cpu"), Counter()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.kind.family in ("linear", "bmm"):
            found["product", *operator.matmul, "torch.float32"] += 1
    assert found == Counter({key: count for key, count in log.seen.items() if key[0] == "product"})


@pytest.mark.parametrize("name", OTHERS)
def test_its_calls_are_those_that_are_dispatched(name):
    model, x = Of(OTHERS[name]), torch.randn(SHAPE)
    with torch.no_grad(), DispatchLog(kinds_run) as log:
        model(x)
    read, found = read_run(Workload(model, x), "cpu"), Counter()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        found[kind_of(operator), elements_of(operator)] += 1
    assert sum(found.values()) == sum(log.seen.values())
    assert Counter(key[1] for key in found.elements()) == Counter(key[1] for key in log.seen.elements())


@pytest.mark.parametrize("mode", ["inference", "forward_backward"])
def test_a_weight_norm_is_one_kernel_that_reads_the_weight(mode):
    model = nn.utils.parametrizations.weight_norm(nn.Linear(16, 32))
    read = read_run(Workload(model, torch.randn(4, 16), mode=mode))
    (norm,) = [
        read.operators[call.task_id]
        for call in read.graph.calls
        if call.name.startswith("_weight_norm") and call.forward is None
    ]
    assert norm.io_bytes == pytest.approx(4 * (2 * 16 * 32 + 2 * 32), rel=0.05)

"""Operators that read one value several times: products and sums of gradients are those of a real backward pass."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatch_log import DispatchLog

aten = torch.ops.aten
SIZE = 16


class Reading(nn.Module):
    """Results of linear layers, and a parameter, are read by a function."""

    def __init__(self, read) -> None:
        super().__init__()
        self.read, self.first, self.second = read, nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.bias, self.matrix = nn.Parameter(torch.rand(SIZE)), nn.Parameter(torch.rand(SIZE, SIZE))
        self.gru, self.norm = nn.GRU(SIZE // 2, SIZE // 2), nn.MultiheadAttention(SIZE, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self, x, self.first(x))


RESULTS = {
    "itself": lambda m, x, y: y * y,
    "its transpose": lambda m, x, y: y.transpose(1, 2) * y,
    "parts": lambda m, x, y: torch.stack([y[..., :8], y[..., 8:]]),
    "cat": lambda m, x, y: torch.cat([y.transpose(1, 2), y.transpose(1, 2), y]),
    "product": lambda m, x, y: y @ y.transpose(1, 2),
    "product of itself": lambda m, x, y: y @ y,
    "einsum": lambda m, x, y: torch.einsum("bij,bkj->bik", y, y),
    "einsum of three": lambda m, x, y: torch.einsum("bij,bkj,bkl->bil", y, y, y),
    "baddbmm": lambda m, x, y: torch.baddbmm(y.transpose(1, 2), y, y.transpose(1, 2)),
    "baddbmm of a column": lambda m, x, y: torch.baddbmm(y[:, :1], y, y.transpose(1, 2)),
    "addmm": lambda m, x, y: torch.addmm(y[0].t(), y[0], y[0].t()),
    "attention": lambda m, x, y: functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None]),
    "norm": lambda m, x, y: functional.layer_norm(y[0].t(), (SIZE,), y[0, 0], y[0, 1]),
    "a part that trains nothing": lambda m, x, y: m.norm(y, y, y)[0],
    "added by baddbmm": lambda m, x, y: torch.baddbmm(m.second(x), y, x.transpose(1, 2)),
    "bias of baddbmm": lambda m, x, y: torch.baddbmm(m.bias, y, x.transpose(1, 2)),
    "added by addmm": lambda m, x, y: torch.addmm(m.second(x)[0], y[0], x[0].t()),
    "a weight and its transpose": lambda m, x, y: y @ (m.matrix @ m.matrix.t()),
    "a weight and itself": lambda m, x, y: y @ functional.linear(m.matrix, m.matrix),
    "a weight added": lambda m, x, y: torch.addmm(m.matrix, y[0], m.matrix),
}


def counted(func, args, out):
    """Of a backward pass: products, sums of two gradients, and sums of columns, by their elements."""
    if func in (aten.mm.default, aten.bmm.default):
        return [("product", out.numel())]
    names = {aten.add.Tensor: "add", aten.sum.dim_IntList: "sum"}
    return [(names[func], out.numel())] if func in names else []


Log = partial(DispatchLog, counted)


def predicted(model: nn.Module, x: torch.Tensor, kind: str = "cpu") -> Counter:
    loss = {"loss": lambda output: (output * torch.ones_like(output)).sum(), "optimizer": None}
    read = read_step(Workload(model, (x,), mode="training_step", **loss), kind)
    named = {"linear": "product", "bmm": "product", "add": "add", "mean": "sum"}
    run = (read.operators[one.call.task_id] for one in read.step.calls if one.phase == "backward")
    return Counter((named[one.name], int(one.written_elements)) for one in run if one.name in named)


@pytest.mark.parametrize("name", RESULTS)
def test_sums_and_products_are_those_of_a_real_backward_pass(name):
    model, x = Reading(RESULTS[name]), torch.rand(3, SIZE, SIZE)
    output = model(x)
    loss = (output * torch.ones_like(output)).sum()
    with Log() as real:
        loss.backward()
    assert predicted(model, x) == real.seen


def test_a_layer_that_is_given_a_value_twice_has_two_gradients_of_it():
    """The loops of a GRU are one operator here: nothing but the sum of both gradients is added."""
    twice = Reading(lambda m, x, y: m.gru(y[..., :8], y[:1, :, 8:].contiguous())[0])
    once = Reading(lambda m, x, y: m.gru(y[..., :8])[0])
    x = torch.rand(3, SIZE, SIZE)
    more = predicted(twice, x, "gpu") - predicted(once, x, "gpu")
    assert more["add", x.numel()] == 1

"""Tensors that are written into, also through views: gradients, kernels and kept bytes are those of real autograd."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatched import predicted_step, real_step

aten = torch.ops.aten


class Overwriting(nn.Module):
    """Two branches, of which a function of them writes one into the other, or both into a new tensor."""

    def __init__(self, join) -> None:
        super().__init__()
        self.join, self.small = join, nn.Linear(32, 32)
        self.large = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))
        self.row = nn.Parameter(torch.rand(32))
        self.register_buffer("cache", torch.zeros(4, 16, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(self, self.small(x), self.large(x))


def into_cat(_, a, b):
    whole = torch.cat([a, a], 1)
    whole[:, :16] = b
    return whole


def into_zeros(_, a, b):
    whole = torch.zeros(4, 16, 64)
    whole[..., :32], whole[..., 32:] = a, b
    return whole


def added(_, a, b):
    whole = a.new_zeros(4, 16, 64)
    whole[..., :32] += a
    whole[..., 32:] += b
    return whole


def narrowed(_, a, b):
    whole = torch.empty(4, 16, 64)
    whole[..., :32].copy_(a)
    whole.narrow(2, 32, 32).copy_(b)
    return whole


def multiplied(_, a, b):
    whole = a * 1
    whole.view(-1).mul_(2)
    whole[:, 0].mul_(b[:, 1])
    return whole.exp()


def by_its_first_name(_, a, b):
    whole = a * 1
    whole.add_(b)
    return whole.sin()


def through_an_older_view(_, a, b):
    whole = torch.zeros(4, 16, 64)
    view = whole[..., :32]
    whole[..., :32] = b
    return view.exp()


def into_a_buffer(m, a, b):
    m.cache[..., :32] = a
    return m.cache * 2


def a_parameter(m, a, b):
    whole = torch.zeros(4, 16, 32)
    whole[:, 0] = m.row
    return whole * 2


def in_a_loop(m, a, b):
    whole = torch.zeros(4, 16, 32)
    for step in range(1, 4):
        whole[:, step] = torch.tanh(whole[:, step - 1].clone() + a[:, step])
    return m.large(whole)


def by_numbers(_, a, b):
    whole = a * 1
    whole[:, torch.tensor([1, 2])] = b[:, :2]
    whole[:, 3].zero_()
    return whole


def of_a_detached_one(_, a, b):
    whole = a * 1
    whole.detach().mul_(b)
    return whole


def detached_later(m, a, b):
    whole = a * 1
    whole[:, 0] = b[:, 0]
    return whole.detach() * m.row


def with_gradients_off(_, a, b):
    whole = a * 1
    with torch.no_grad():
        whole[:, 0] = b[:, 0]
    return whole


JOINS = (
    into_cat, into_zeros, added, narrowed, multiplied, by_its_first_name, through_an_older_view, into_a_buffer,
    a_parameter, in_a_loop, by_numbers, of_a_detached_one, detached_later, with_gradients_off,
)  # fmt: skip


@pytest.mark.parametrize("join", JOINS, ids=lambda join: join.__name__)
def test_gradients_and_kept_bytes_are_those_of_autograd(join):
    model, x = Overwriting(join), torch.randn(4, 16, 32)
    real = real_step(model, (x,))
    trained = {name for name, one in model.named_parameters() if one.grad is not None}
    predicted = predicted_step(Overwriting(join), (x,))
    assert predicted.saved_bytes == real.saved_bytes
    assert predicted.backward == real.backward
    step = _read(join, x).step
    assert {one.name for one in step.parameters if one.number is not None} == trained
    assert step.memory.gradient_bytes == sum(
        one.numel() * 4 for name, one in model.named_parameters() if name in trained
    )


class Copies(TorchDispatchMode):
    """Counts calls that fill a tensor, by its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[int] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (aten.copy_.default, aten.clone.default, aten.zeros_like.default):
            self.seen[out.numel()] += 1
        return out


@pytest.mark.parametrize("join", [into_zeros, narrowed], ids=lambda join: join.__name__)
def test_a_write_into_a_part_copies_the_gradient_of_the_whole_and_that_of_the_part(join):
    """Twice of the whole; of the part four times, once with zeros: what the first write covers has no gradient."""
    x = torch.randn(4, 16, 32)
    whole = Overwriting(join)(x)
    with Copies() as real:
        whole.backward(torch.rand_like(whole))
    read = _read(join, x)
    backward = [read.operators[one.call.task_id] for one in read.step.calls if one.phase == "backward"]
    copies = Counter(int(one.written_elements) for one in backward if one.name == "copy")
    assert +copies == real.seen == {whole.numel(): 2, whole.numel() // 2: 4}


def _read(join, x):
    workload = Workload(Overwriting(join), (x,), loss=lambda output: output.sum(), optimizer=None, mode="training_step")
    return read_step(workload, "cpu")

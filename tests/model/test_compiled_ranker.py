"""The compiled gradients of a ranker are those of torch, and those with dropout are drawn as dropout draws."""

from __future__ import annotations

import numpy as np
import torch

from cdmpp.model.compiled_ranker import RankerGradient
from cdmpp.model.ranker import WIDTH, Ranker

TASKS = [np.array(rows) for rows in ([3, 1, 7], [0, 2], [9, 8, 6, 5, 4])]


def made(seed: int = 0):
    torch.manual_seed(seed)
    members = [[one.detach().clone() for one in member.parameters()] for member in Ranker().members]
    for own in members:
        for one in own:
            one.grad = torch.full_like(one, torch.nan)
    inputs = torch.randn(10, members[0][0].shape[1])
    return members, inputs, 3 * torch.randn(10)


def loss_of(weights, inputs, goal):
    up, up_bias, middle, middle_bias, last, last_bias = weights
    active = torch.nn.functional.gelu(inputs @ up.T + up_bias)
    scores = (torch.nn.functional.gelu(active @ middle.T + middle_bias) @ last.T + last_bias)[:, 0]
    return -sum((goal[rows].softmax(0) * scores[rows].log_softmax(0)).sum() for rows in TASKS) / len(TASKS)


def test_gradients_are_those_of_torch():
    members, inputs, goal = made()
    given = [TASKS, TASKS[::-1], TASKS]
    RankerGradient(members, inputs, goal, dropout=0.0).put(given, [1, 2, 3], threads=2)
    for own in members:
        leaves = [one.detach().clone().requires_grad_() for one in own]
        loss_of(leaves, inputs, goal).backward()
        for found, leaf in zip(own, leaves, strict=True):
            torch.testing.assert_close(found.grad, leaf.grad, rtol=2e-4, atol=2e-6)


def test_dropout_hides_its_share_and_keeps_the_mean():
    members, inputs, goal = made()
    exact = RankerGradient(members, inputs, goal, dropout=0.0)
    exact.put([TASKS] * 3, [0, 0, 0], threads=1)
    wanted = [one.grad.clone() for one in members[0]]
    dropped, draws = RankerGradient(members, inputs, goal, dropout=0.25), []
    for seed in range(400):
        dropped.put([[rows[:1] for rows in TASKS[:1]] * 2] * 3, [seed, seed, seed], threads=3)
        assert all(torch.equal(one.grad, torch.zeros_like(one)) for one in members[0])  # a task of one tells nothing
        dropped.put([TASKS] * 3, [seed, seed, seed + 1], threads=2)
        draws.append(members[0][4].grad.clone())
    mean = torch.stack(draws).mean(0)
    assert (mean - wanted[4]).norm() < 0.2 * wanted[4].norm()
    assert not torch.equal(draws[0], draws[1]) and draws[0].numel() == WIDTH


def test_any_number_of_threads_gives_the_same_bits():
    found = []
    for threads in (1, 2, 5):
        members, inputs, goal = made()
        RankerGradient(members, inputs, goal, dropout=0.1).put([TASKS] * 3, [4, 5, 6], threads)
        found.append([one.grad for own in members for one in own])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))

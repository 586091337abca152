"""The ranking term: zero where the order is right, blind to scale and to other tasks, with a gradient that sorts."""

from __future__ import annotations

import pytest
import torch

from cdmpp.training.ranking import ranking_loss

TRUTH = torch.tensor([0.0, 0.5, 1.5, -1.0, 2.0])
TASKS = torch.tensor([0, 0, 0, 1, 1])


def test_the_right_order_costs_less_than_the_reverse() -> None:
    right, wrong = ranking_loss(TRUTH, TRUTH, TASKS), ranking_loss(-TRUTH, TRUTH, TASKS)
    assert float(right) < 0.05 < 5 < float(wrong)


def test_the_level_of_a_task_does_not_matter() -> None:
    moved = TRUTH + torch.tensor([3.0, 3.0, 3.0, -2.0, -2.0])
    assert float(ranking_loss(moved, TRUTH, TASKS)) == pytest.approx(float(ranking_loss(TRUTH, TRUTH, TASKS)))


def test_single_programs_and_ties_cost_nothing() -> None:
    assert float(ranking_loss(-TRUTH, TRUTH, torch.arange(5))) == 0.0
    assert float(ranking_loss(TRUTH, torch.zeros(5), torch.zeros(5))) == 0.0


def test_descent_sorts_a_task() -> None:
    predicted = torch.zeros(5, requires_grad=True)
    for _ in range(60):
        (gradient,) = torch.autograd.grad(ranking_loss(predicted, TRUTH, TASKS), predicted)
        predicted = (predicted - 0.05 * gradient).detach().requires_grad_()
    assert predicted[0] < predicted[1] < predicted[2] and predicted[3] < predicted[4]

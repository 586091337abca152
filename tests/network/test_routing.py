"""Loops over experts in users' modules: every search finds as many tokens as is said; the rest is a real run."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from cdmpp.programs.experts import expert_rows
from cdmpp.programs.routing import EVENLY
from tests.network.dispatched import Log

EXPERTS, CHOSEN, WIDTH, INNER, TOKENS = 4, 2, 16, 32, 48


class Experts(nn.Module):
    """A router and experts; how their tokens are found is a matter of the class."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.SiLU(), nn.Linear(INNER, WIDTH)) for _ in range(EXPERTS)
        )

    def choice(self, x: torch.Tensor):
        return torch.topk(functional.softmax(self.gate(x), dim=-1), CHOSEN, dim=-1)

    def add(self, out: torch.Tensor, number, x: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> None:
        out.index_add_(0, rows, self.experts[number](x[None, rows].reshape(-1, WIDTH)) * weights[:, None])


class Where(Experts):
    """Mixtral of transformers before its experts were grouped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.choice(x)
        out, mask = torch.zeros_like(x), functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for number in range(EXPERTS):
            place, rows = torch.where(mask[number])
            self.add(out, number, x, rows, weights[rows, place])
        return out


class Hit(Experts):
    """Only experts that have tokens: Qwen-MoE of transformers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.choice(x)
        out, mask = torch.zeros_like(x), functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, rows = torch.where(mask[number].squeeze(0))
            self.add(out, number, x, rows, weights[rows, place])
        return out


class NonZero(Experts):
    """A search for each expert among the choices, left out where it finds nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.choice(x)
        out = torch.zeros_like(x)
        for number in range(EXPERTS):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if rows.numel() > 0:
                self.add(out, number, x, rows, weights[rows, place])
        return out


class Listed(Experts):
    """Counts are read by the host: DeepSeek."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.choice(x)
        out, counts = torch.zeros_like(x), torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
        for number in range(EXPERTS):
            if counts[number] == 0:
                continue
            rows, place = torch.where(chosen == number)
            self.add(out, number, x, rows, weights[rows, place])
        return out


class Masked(Experts):
    """A mask selects tokens, and where their results are added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.choice(x)
        out, gates = torch.zeros_like(x), torch.zeros_like(self.gate(x)).scatter(-1, chosen, weights)
        for number, expert in enumerate(self.experts):
            mask = (chosen == number).any(dim=-1)
            if mask.any():
                out[mask] += expert(x[mask]) * gates[mask, number].unsqueeze(1)
        return out


LOOPS = (Where, Hit, NonZero, Listed, Masked)


def products(read, phase: str | None = None) -> Counter:
    calls = read.graph.calls if phase is None else [one.call for one in read.step.calls if one.phase == phase]
    operators = (read.operators[call.task_id] for call in calls)
    return Counter(("product", *one.matmul, "torch.float32") for one in operators if one.kind.family == "linear")


@pytest.mark.parametrize("imbalance", [1.0, 2.0])
@pytest.mark.parametrize("loop", LOOPS)
def test_experts_multiply_as_many_tokens_as_is_said(loop, imbalance):
    read = read_run(Workload(loop(), torch.randn(TOKENS, WIDTH), moe_imbalance=imbalance))
    rows = expert_rows(TOKENS * CHOSEN, EXPERTS, imbalance)
    found = Counter({key[2]: count for key, count in products(read).items() if key[3:5] == (WIDTH, INNER)})
    assert found == Counter(rows)
    assert EVENLY in read.warnings


@pytest.mark.parametrize("loop", LOOPS)
def test_its_products_are_those_of_a_real_run_that_shares_evenly(loop):
    """The router is set so that every expert has as many tokens."""
    model, x = loop(), torch.zeros(TOKENS, WIDTH)
    x[torch.arange(TOKENS), torch.arange(TOKENS) % EXPERTS] = 2.0
    x[torch.arange(TOKENS), (torch.arange(TOKENS) + 1) % EXPERTS] = 1.0
    with torch.no_grad(), Log() as log:
        model.gate.weight.copy_(torch.eye(EXPERTS, WIDTH))
        model(x)
    assert products(read_run(Workload(model, x), "cpu")) == Counter(
        {key: count for key, count in log.seen.items() if key[0] == "product"}
    )


@pytest.mark.parametrize("loop", [Where, Masked])
def test_it_is_trained(loop):
    read = read_step(Workload(loop(), torch.randn(TOKENS, WIDTH), mode="training_step", loss="mse"))
    assert all(one.is_used for one in read.step.parameters)
    work = [
        sum(rows * inner * cols * count for (_, _, rows, inner, cols, _), count in products(read, phase).items())
        for phase in ("forward", "backward")
    ]
    experts = 2 * TOKENS * CHOSEN * WIDTH * INNER
    assert work[0] >= experts and work[1] >= 1.5 * experts  # the batch needs no gradient


class Other(nn.Module):
    """What is kept is no choice of a router."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[torch.where(x.sum(-1) > 0)[0]])


class Edges(nn.Module):
    """Edges that are no loops: how many there are is a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] * 2


def test_a_size_that_values_decide_is_refused_by_place_with_what_to_give():
    with pytest.raises(CdmppError, match=r"depends on the values.*at index \(index.*--boxes"):
        read_run(Workload(Edges(), torch.randn(TOKENS, WIDTH)))
    assert read_run(Workload(Edges(), torch.randn(TOKENS, WIDTH), boxes=8)).graph.calls


def test_other_selections_are_refused_as_before():
    with pytest.raises(CdmppError, match="depends on the values"):
        read_run(Workload(Other(), torch.randn(TOKENS, WIDTH)))
    with pytest.raises(UsageError, match="has no mixture of experts"):
        read_run(Workload(nn.Linear(WIDTH, WIDTH), torch.randn(TOKENS, WIDTH), moe_imbalance=2.0))

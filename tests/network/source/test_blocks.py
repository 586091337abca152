"""Lists of equal blocks: what may be read from a few of them, and what may not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cdmpp.network.source.blocks import FEW, LEAST, blocks_in

WIDTH = 8
X = torch.zeros(2, WIDTH)


class Block(nn.Module):
    def __init__(self, number: int = 0, rate: float = 0.5, inner: int = WIDTH) -> None:
        super().__init__()
        self.number, self.rate = number, rate
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.rate * self.down(torch.relu(self.up(x))) * (1 if scale is None else scale)


class Chain(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(WIDTH, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        scale = x.mean()
        for block in self.layers:
            x = block(x, scale)
        return self.last(x)


class AllRead(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [self.first(x)]
        for block in self.layers:
            found.append(block(found[-1]))
        return self.last(torch.stack(found).sum(0))


class Between(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers:
            x = torch.tanh(block(x))
        return self.last(x)


class EverySecond(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = x.mean(), x.sum()
        for number, block in enumerate(self.layers):
            x = block(x, scales[number % 2])
        return self.last(x)


class Twice(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.layers, self.layers[0]):
            x = block(x)
        return self.last(x)


class Ladder(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, x = x, self.first(x)
        for block in self.layers:
            before, x = x, block(before)
        return self.last(x)


class ByNumber(Block):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        x = super().forward(x, scale)
        return torch.tanh(x) if self.number == LEAST - 2 else x


class ByMode(Chain):
    """Its later blocks run in another way than the first ones: under another precision, or without gradients."""

    def __init__(self, mode: Callable[[bool], AbstractContextManager[Any]]) -> None:
        super().__init__(*equal())
        self.mode = mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for number, block in enumerate(self.layers):
            with self.mode(number >= FEW[1]):
                x = block(x)
        return self.last(x)


class Checkpointed(Chain):
    """Some blocks run again in the backward pass."""

    def __init__(self, reentrant: bool, every: int = 1) -> None:
        super().__init__(*equal())
        self.reentrant, self.every = reentrant, every

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for number, block in enumerate(self.layers):
            again = number % self.every == 0
            x = checkpoint(block, x, use_reentrant=self.reentrant) if again else block(x)
        return self.last(x)


class WeightsRead(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + sum(block.up.weight.square().sum() for block in self.layers)


class Counted(Chain):
    """What runs in front depends on how many blocks there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.tanh(x) if len(self.layers) > max(FEW) else x)


class Dropped(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.layers:
            if torch.rand([]) > 0.1:
                x = block(x)
        return self.last(x)


def equal(many: int = LEAST) -> list[nn.Module]:
    return [Block(number) for number in range(many)]


def tied() -> nn.Module:
    model = Chain(*equal())
    model.layers[3].up.weight = model.layers[5].up.weight
    return model


def hooked() -> nn.Module:
    model = Chain(*equal())
    model.layers[4].register_forward_hook(lambda *given: None)
    return model


def test_blocks_that_all_run_again() -> None:
    assert blocks_in(Checkpointed(reentrant=False), (X,)) is not None


def test_lists_of_equal_blocks() -> None:
    chain = Chain(*equal())
    found = blocks_in(chain, (X,))
    assert found is not None
    assert (found.parent, len(found.names), found.copies) == (chain.layers, LEAST, LEAST - FEW[0])
    with found.shortened():
        assert len(chain.layers) == FEW[0]
        assert chain(X).shape == (2, 3)
    assert [block.number for block in chain.layers] == list(range(LEAST))
    assert all("forward" not in vars(block) for block in chain.layers)
    named = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(*equal()))
    assert (found := blocks_in(named, (X,))) is not None
    assert found.parent is named[1]


@pytest.mark.parametrize(
    "model",
    [
        Chain(*equal(LEAST - 1)),
        Chain(*equal()[:-1], Block(LEAST - 1, rate=0.25)),
        Chain(*equal()[:-1], Block(3)),
        Chain(*equal()[:-1], Block(LEAST - 1, inner=2 * WIDTH)),
        Chain(*equal()[:-1], nn.Linear(WIDTH, WIDTH)),
        *(kind(*equal()) for kind in (AllRead, Between, EverySecond, Twice, Ladder)),
        tied(),
        hooked(),
        Chain(*map(ByNumber, range(LEAST))),
        ByMode(lambda on: torch.autocast("cpu", torch.bfloat16, enabled=on)),
        ByMode(torch.set_grad_enabled),
        Checkpointed(False, FEW[1]),
        Checkpointed(True, FEW[1]),
        WeightsRead(*equal()),
        Counted(*equal()),
        Dropped(*equal()),
    ],
    ids=[
        "few",
        "rate",
        "number",
        "inner",
        "kind",
        "all read",
        "between",
        "second",
        "twice",
        "ladder",
        "tied",
        "hooked",
        "by number",
        "autocast",
        "no gradients",
        "checkpoint of some",
        "reentrant checkpoint of some",
        "weights read",
        "counted",
        "dropped",
    ],
)
def test_others(model: nn.Module) -> None:
    assert blocks_in(model, (X,)) is None

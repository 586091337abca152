"""Small networks whose parts are checkpointed, without gradients, or under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Run(nn.Module):
    """Runs a function of its parts and the input."""

    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.run = nn.ModuleList(parts), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.parts, x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class Attention(nn.Module):
    """Of four heads, in plain operators."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.three, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.three(self.norm(x)).unflatten(-1, (3, 2, 4)).transpose(1, 3).unbind(2)
        seen = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x + self.out(seen.transpose(1, 2).flatten(2))


def each(parts: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    for part in parts:
        x = checkpoint(part, x, **{"use_reentrant": False, **options})
    return x


def without_early_stop(parts: Any, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return each(parts, x)


def reentrant_behind(parts: Any, x: torch.Tensor) -> torch.Tensor:
    return each(parts[1:], parts[0](x), use_reentrant=True)


def inside(parts: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: parts[1](checkpoint(parts[0], y, use_reentrant=False)), x, use_reentrant=False)


def inside_last(parts: Any, x: torch.Tensor) -> torch.Tensor:
    run = functools.partial(checkpoint, use_reentrant=False)
    return parts[2](run(lambda y: run(parts[1], parts[0](y)), x))


def reentrant_inside(parts: Any, x: torch.Tensor) -> torch.Tensor:
    run = functools.partial(checkpoint, use_reentrant=True)
    return parts[2](run(lambda y: run(parts[1], parts[0](y)), parts[3](x)))


def residual(parts: Any, x: torch.Tensor) -> torch.Tensor:
    for part in parts:
        x = x + checkpoint(part, x, use_reentrant=False)
    return x


def sequential(parts: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint_sequential(nn.Sequential(*parts), 2, x, use_reentrant=False)


def scaled_tail(parts: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y, by: parts[0](y) * by + 1, x, by=2.0, use_reentrant=False)


def partly_off(parts: Any, x: torch.Tensor) -> torch.Tensor:
    def region(y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = parts[1](y)
        return parts[0](y + z)

    return parts[3](checkpoint(region, parts[2](x), use_reentrant=False))


def wrapped(kind: str) -> Callable[[], Made]:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

    return lambda: (
        nn.Sequential(mlp(), checkpoint_wrapper(mlp(), CheckpointImpl[kind]), mlp()), (torch.randn(4, 8),)
    )  # fmt: skip


def composable() -> Made:
    from torch.distributed._composable import checkpoint as in_place

    model = nn.Sequential(mlp(), mlp(), mlp())
    in_place(model[1])
    return model, (torch.randn(4, 8),)


def made(run: Callable[[Any, torch.Tensor], torch.Tensor], *parts: Callable[[], nn.Module]) -> Callable[[], Made]:
    shape = (2, 5, 8) if Attention in parts else (4, 8)
    return lambda: (Run(run, *(part() for part in parts)), (torch.randn(*shape),))


def behind(last: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(mlp(), last())


CHECKPOINTED: dict[str, Callable[[], Made]] = {
    "each block": made(each, mlp, mlp),
    "to its end": made(without_early_stop, mlp, mlp),
    "to its end by its option": made(functools.partial(each, early_stop=False), mlp, mlp),
    "without random state": made(functools.partial(each, preserve_rng_state=False), mlp, mlp),
    "reentrant": made(reentrant_behind, mlp, mlp, mlp),
    "one inside another": made(inside, mlp, mlp),
    "one at the end of another": made(inside_last, mlp, mlp, mlp),
    "reentrant inside reentrant": made(reentrant_inside, mlp, mlp, mlp, mlp),
    "residual": made(residual, mlp, mlp),
    "sequential": made(sequential, mlp, mlp, mlp, mlp),
    "keyword arguments": made(scaled_tail, mlp),
    "single operators": made(each, lambda: nn.Linear(8, 8), nn.GELU, lambda: nn.Linear(8, 8)),
    "with a part without gradients": made(partly_off, mlp, mlp, mlp, mlp),
    "attention": made(each, Attention, Attention),
    "ends in an activation": made(each, behind(nn.ReLU), mlp),
    "ends in a norm": made(each, behind(lambda: nn.LayerNorm(8)), mlp),
    "ends in a softmax": made(each, behind(lambda: nn.Softmax(-1)), mlp),
    "ends in a dropout": made(each, behind(lambda: nn.Dropout(0.5)), mlp),
    "wrapper": wrapped("NO_REENTRANT"),
    "reentrant wrapper": wrapped("REENTRANT"),
    "composable": composable,
}


def off_first(parts: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = parts[0](x)
    return parts[1](x) + y


def off_between(parts: Any, x: torch.Tensor) -> torch.Tensor:
    x = parts[0](x)
    with torch.no_grad():
        y = parts[1](x)
    return parts[2](x + y)


def inference(parts: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = parts[0](x)
    return parts[1](x) + y.clone()


def set_off(parts: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.set_grad_enabled(False):
        x = parts[0](x)
        with torch.enable_grad():
            return parts[1](x)


def detached_once(parts: Any, x: torch.Tensor) -> torch.Tensor:
    x = parts[0](x)
    return parts[1](x) + parts[2](x.detach())


class Decorated(nn.Module):
    """Its first part has no gradients by a decorator, as the tables of rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(), mlp()

    @torch.no_grad()
    def table(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x + self.table(x))


WITHOUT_GRADIENTS: dict[str, Callable[[], Made]] = {
    "nothing": made(lambda parts, x: parts[1](parts[0](x)), mlp, mlp),
    "no_grad": made(off_first, mlp, mlp),
    "no_grad between": made(off_between, mlp, mlp, mlp),
    "inference_mode": made(inference, mlp, mlp),
    "set_grad_enabled": made(set_off, mlp, mlp),
    "decorator": lambda: (Decorated(), (torch.randn(4, 8),)),
    "detach": made(lambda parts, x: parts[1](parts[0](x).detach()), mlp, mlp),
    "detach of one of two readers": made(detached_once, mlp, mlp, mlp),
    "detach of a whole branch": made(lambda parts, x: parts[0](x) + parts[1](x).detach(), mlp, mlp),
    "frozen first": made(lambda p, x: p[1](p[0](x)), lambda: mlp().requires_grad_(requires_grad=False), mlp),
    "frozen between": made(
        lambda p, x: p[2](p[1](p[0](x))), mlp, lambda: mlp().requires_grad_(requires_grad=False), mlp
    ),
}

"""Optimizer: the update of one parameter from its gradient, as a torch function that can be traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import UsageError

_EPS, _FIRST, _SECOND, _MOMENTUM, _DECAY = 1e-8, 0.9, 0.999, 0.9, 0.01
"""Torch's defaults of Adam and AdamW; momentum as most recipes have it."""


@dataclass(frozen=True)
class Optimizer:
    """It is one of ``OPTIMIZERS``, or ``NONE``. Its numbers are torch's defaults; SGD has a momentum of 0.9."""

    name: str
    states: int
    """Tensors of a parameter's shape that it keeps for each."""
    scalars: int
    """Numbers that change from step to step, which a step takes as tensors: the learning rate first."""
    update: Callable[..., tuple[Any, ...]]
    """``(parameter, gradient, states, scalars)`` -> the new parameter and the new states."""

    def scalars_of(self, rate: float, step: int) -> tuple[float, ...]:
        """Return scalars of the step number ``step``, from 1, with the learning rate ``rate``."""
        corrections = (1 / (1 - _FIRST**step), 1 / (1 - _SECOND**step))
        return (rate, *corrections)[: self.scalars]


def _sgd(parameter: Any, gradient: Any, states: tuple[Any, ...], scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    velocity = states[0] * _MOMENTUM + gradient
    return parameter - scalars[0] * velocity, velocity


def _adam(parameter: Any, gradient: Any, states: tuple[Any, ...], scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    rate, first, second = scalars
    mean = states[0] * _FIRST + gradient * (1 - _FIRST)
    square = states[1] * _SECOND + gradient * gradient * (1 - _SECOND)
    return parameter - rate * (mean * first) / ((square * second).sqrt() + _EPS), mean, square


def _adamw(parameter: Any, gradient: Any, states: tuple[Any, ...], scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    decayed = parameter - parameter * (scalars[0] * _DECAY)
    return _adam(decayed, gradient, states, scalars)


OPTIMIZERS = {
    "sgd": Optimizer("sgd", 1, 1, _sgd),
    "adam": Optimizer("adam", 2, 3, _adam),
    "adamw": Optimizer("adamw", 2, 3, _adamw),
}


NONE = Optimizer("none", 0, 0, lambda *_: ())
"""Forward and backward pass only: parameters stay as they are."""


def optimizer_of(name: str | None) -> Optimizer:
    """Return ``NONE`` for ``None`` or its name; ``UsageError`` for one that is not among ``OPTIMIZERS``."""
    if name is None or name == NONE.name:
        return NONE
    if name not in OPTIMIZERS:
        raise UsageError(f"optimizer {name!r} is unknown: use {', '.join(OPTIMIZERS)}, or none for no update")
    return OPTIMIZERS[name]


def update_module(optimizer: Optimizer, joint: Any, inputs: int, pairs: tuple[tuple[int, int], ...]) -> Any:
    """Make a torch module that runs ``joint`` and then updates each parameter.

    Its inputs are those of ``joint`` (``inputs`` of them), the states of each parameter, then the scalars. Its results
    are those of ``joint``, then of each parameter its new value and its new states.

    Args:
        optimizer: how to update.
        joint: forward and backward; or what gives parameters and gradients as they came, where there is no more.
        inputs: how many tensors ``joint`` takes.
        pairs: of each parameter, its number among the inputs and that of its gradient among the results.
    """
    import torch

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joint = joint

        def forward(self, *values: Any) -> tuple[Any, ...]:
            given, rest = values[:inputs], values[inputs:]
            found, updated = tuple(self.joint(*given)), list[Any]()
            scalars = rest[len(rest) - optimizer.scalars :]
            for i, (parameter, gradient) in enumerate(pairs):
                states = rest[i * optimizer.states : (i + 1) * optimizer.states]
                updated += optimizer.update(given[parameter], found[gradient], states, scalars)
            return (*found, *updated)

    return Step()

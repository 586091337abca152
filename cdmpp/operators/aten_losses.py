"""Losses of two tensors, element by element and then summed: mean squares, and those that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cdmpp.operators.aten_layout import arguments_of, dtype_of, matrix, shape_of
from cdmpp.operators.operator import EagerOperator

_NONE = 0
"""The ``reduction`` of a loss that gives a number for each element."""


def _square(given: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG001
    return ("sub",)


def _absolute(given: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG001
    return "sub", "relu"


def _scores(given: dict[str, Any]) -> tuple[str, ...]:
    return ("mul", "mul") if given.get("weight") is not None else ("mul",)


def _logits(given: dict[str, Any]) -> tuple[str, ...]:
    """``(1 - target) * input - log_sigmoid(input)``, the logarithm weighted before, the result after."""
    positive = ("mul_broadcast", "add_scalar", "mul") if given.get("pos_weight") is not None else ()
    return "sigmoid", *positive, "add_scalar", "mul", "sub", *_scores(given)[1:]


_KERNELS = {
    "mse_loss": _square,
    "l1_loss": _absolute,
    "smooth_l1_loss": _square,
    "huber_loss": _square,
    "binary_cross_entropy": _scores,
    "binary_cross_entropy_with_logits": _logits,
}
IN_PLACE = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")
"""Losses whose sum goes into the storage of the differences, which so lives as long as the loss."""
LOSSES = tuple(_KERNELS)
"""Names of losses; ``mse_loss`` alone is made of kernels that were measured."""


def loss_of(node: Any, name: str) -> tuple[tuple[EagerOperator, ...], str]:
    """Return what ATen runs for a loss of ``LOSSES``, kernel by kernel, and what that stands for; empty: itself."""
    given = arguments_of(node)
    score = given.get("input", given.get("self"))
    operators: Sequence[EagerOperator] = [matrix(one, score) for one in _KERNELS[name](given)]
    if given.get("reduction", 1) != _NONE:
        elements = math.prod(shape_of(score))
        operators = [*operators, EagerOperator("mean", {"rows": 1, "cols": elements}, dtype_of(score))]
    return tuple(operators), "" if name == "mse_loss" else name

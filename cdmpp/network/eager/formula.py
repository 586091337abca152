"""Formula: the kernels that autograd runs for the gradients of one node, as they were seen when they ran once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten import Calls, calls_of, name_of
from cdmpp.operators.operator import ATTENTION, PRODUCTS, EagerOperator

GIVEN = -1
"""In place of a step: the gradient of the node's result, which is handed on as it is, or a view of it."""


class FormulaStep(NamedTuple):
    """A step is one kernel of a formula."""

    operators: tuple[EagerOperator, ...]
    """It is answered as these operators."""
    written_bytes: int
    """0: it writes into what another one made."""
    reads: tuple[int, ...]
    """Steps whose results it reads, or ``GIVEN``."""


class Formula(NamedTuple):
    """All kernels of a node's gradients, in order."""

    steps: tuple[FormulaStep, ...]
    makers: Mapping[int, int]
    """Place of an argument among the tensors that the node is given -> the step that makes its gradient."""


@dataclass(frozen=True, eq=False)
class _Value:  # no tuple, which would be one of several arguments
    """It stands for a node that only has a value."""

    meta: Mapping[str, Any]


class _Seen(NamedTuple):
    """A kernel that ran, as a node of a graph would tell it."""

    target: Any
    args: Any
    kwargs: Any
    meta: Mapping[str, Any]
    all_input_nodes: tuple[_Value, ...]
    name: str = "gradient"
    op: str = "call_function"


class Recorder:
    """It turns the kernels of a backward pass into steps as they run.

    The gradients that the node is given are empty tensors, made first.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.places: dict[int, int] = {}
        """Address of a storage -> the step that wrote it, or ``GIVEN``."""
        self.steps: list[FormulaStep] = []
        self.is_known = True
        """False once a kernel was of a kind that nothing answers for."""

    def add(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note a kernel, or a view."""
        import torch
        from torch.utils import _pytree

        tensors = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        results = [one for one in _pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
        reads = tuple(dict.fromkeys(self.places[_number(one)] for one in tensors if _number(one) in self.places))
        if function.namespace != "aten" or not self.is_known:
            return
        values = {id(one): _Value({"val": one}) for one in tensors}
        told, named = _pytree.tree_map_only(torch.Tensor, lambda one: values[id(one)], (args, dict(kwargs)))
        seen = _Seen(function, told, named, {"val": result}, tuple(values.values()))
        try:
            operators = calls_of(seen).operators
        except UnsupportedProgramError:
            self.is_known = False
            return
        known = {_number(one) for one in tensors}
        new = {_number(one): one.untyped_storage().nbytes() for one in results if _number(one) not in known}
        if operators:
            self.steps.append(FormulaStep(operators, sum(new.values()), reads))
        maker = len(self.steps) - 1 if operators else None
        for one in results:
            number = _number(one)
            if maker is not None:
                self.places[number] = maker
            elif number in new:  # empty, to be written into
                self.places[number] = GIVEN

    def formula(self, gradients: Mapping[int, Any]) -> Formula | None:
        """Return what ran; ``gradients``: place of a tensor that the node is given -> its gradient, if it has one."""
        made = {place: _number(one) for place, one in gradients.items() if one is not None}
        if not self.is_known or not self.places.keys() >= {*made.values()}:
            return None
        return Formula(tuple(self.steps), {place: self.places[number] for place, number in made.items()})


def _number(tensor: Any) -> int:
    """The address of its storage."""
    return int(tensor.untyped_storage()._cdata)


COPIES = ("clone", "contiguous", "reshape", "reshape_as", "flatten", "ravel")
"""Copies into another layout: autograd sees through them, and a gradient is copied where it is read as a matrix."""


def has_formula(node: Any, found: Calls) -> bool:
    """Return False for a node whose gradients are those of ``backward_of``: a product, attention, a copy."""
    return (
        not found.gradients
        and name_of(node) not in COPIES
        and not any(one.kind.family in (*PRODUCTS, ATTENTION) for one in found.operators)
    )

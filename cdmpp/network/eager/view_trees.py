"""The gradients of values that are read through views: autograd's own formulas, which stack, fill up, add and sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from cdmpp.network.eager.formula import Formula
from cdmpp.network.eager.temporaries import gradients_of
from cdmpp.network.eager.without_values import Known, key_of, on_meta, told
from cdmpp.operators.aten import name_of
from cdmpp.programs.regions import has_gradient


class ViewTree(NamedTuple):
    """A value has readers that are trained."""

    arrivals: int
    """Arguments that read it: autograd adds the gradients of all, also where one reader has several."""
    formula: Formula | None
    """The kernels that make the gradient of the value of these; None: it is their sum, or nobody knows how."""


class ViewTrees:
    """It goes along with an exported graph and notes who reads which value through which views."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        """Begin with the value of each node that ran."""
        self.values = values
        self.parents = dict[Any, Any]()
        """View -> what it is a view of."""
        self.readers = dict[Any, list[tuple[Any, Any]]]()
        """Value that a kernel wrote, or that the network was given -> (reader, what it reads)."""

    def view(self, node: Any) -> None:
        """Note a node that runs nothing."""
        if node.all_input_nodes:
            self.parents[node] = node.all_input_nodes[0]

    def read(self, node: Any, sums: bool) -> None:
        """Note a node that runs a kernel; ``sums``: it has one gradient of a tensor that it is given several times."""
        import torch

        given = [one for one in torch.utils._pytree.tree_leaves((node.args, dict(node.kwargs))) if hasattr(one, "meta")]
        for one in dict.fromkeys(given) if sums else given:
            value = self.values.get(one)
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                continue
            base = one
            while base in self.parents and has_gradient(base):
                base = self.parents[base]
            if base not in self.parents:
                self.readers.setdefault(base, []).append((node, one))

    def tree(self, base: Any, is_trained: Callable[[Any], bool]) -> ViewTree | None:
        """Return how the gradient of a value is made; None: no gradient arrives, or it is of several tensors.

        Args:
            base: what a kernel wrote.
            is_trained: says of a reader whether a gradient of its result arrives.
        """
        import torch

        read = [one for reader, one in self.readers.get(base, []) if is_trained(reader)]
        if not read or not isinstance(self.values[base], torch.Tensor):
            return None
        return ViewTree(len(read), self._formula(base, read))

    def each(self, base: Any) -> list[tuple[Any, ViewTree]]:
        """List the readers of a value that read it through views, and how each makes a gradient of it."""
        found = list[tuple[Any, ViewTree]]()
        edges = self.readers.get(base, [])
        for reader in dict.fromkeys(reader for reader, _ in edges):
            read = [one for other, one in edges if other is reader]
            formula = self._formula(base, read)
            if formula is not None and formula.steps:
                found.append((reader, ViewTree(len(read), formula)))
        return found

    def _formula(self, base: Any, read: list[Any]) -> Formula | None:
        """Return the kernels of the gradients of views; None if there are none, or unknown ones."""
        import torch
        from torch.fx import map_arg

        if all(one is base for one in read) or not isinstance(self.values[base], torch.Tensor):
            return None
        views, matrix = self._between(base, read), _matrix(base, self.values[base])
        numbers = {node: f"view {place}" for place, node in enumerate((base, *views))}
        named = [
            (node.target, key_of(map_arg((node.args, node.kwargs), lambda one: numbers.get(one, self._told(one)))))
            for node in views
        ]
        key = told(self.values[base]), matrix, tuple(named), tuple(numbers[one] for one in read)
        known = _formulas().get(key)
        if known is None:
            value = self.values[base].detach()
            value = value if matrix is None else torch.empty(matrix, dtype=value.dtype, device="meta")
            value.requires_grad_()
            run = self._run(base, views, read)
            _formulas().put(key, known := (gradients_of(run, (value,), {}).formula,))
        return known[0]

    def _between(self, base: Any, read: Collection[Any]) -> list[Any]:
        """Views from ``base`` to those that are read, in order."""
        found = dict[Any, None]()
        for one in read:
            way = list[Any]()
            while one is not base:
                way.append(one)
                one = self.parents[one]
            found |= dict.fromkeys(reversed(way))
        return list(found)

    def _run(self, base: Any, views: list[Any], read: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
        from torch.fx import map_arg

        def run(value: Any) -> tuple[Any, ...]:
            made = {base: value.view(self.values[base].shape)}
            for node in views:
                given = map_arg((node.args, node.kwargs), lambda one: made.get(one, self.values.get(one)))
                args, kwargs = on_meta(node.target, *given)
                made[node] = node.target(*args, **kwargs)
            return tuple(made[one] for one in read)

        return run

    def _told(self, node: Any) -> Any:
        import torch

        value = self.values.get(node)
        return told(value) if isinstance(value, torch.Tensor) else str(value)


def _matrix(node: Any, value: Any) -> tuple[int, ...] | None:
    """Shape of what a product writes, which is then seen as the value: a gradient that is not dense is copied first."""
    shape, name = tuple(map(int, value.shape)), name_of(node)
    if len(shape) < 3 or name not in ("linear", "matmul"):
        return None
    is_batched = name == "matmul" and all(one.meta["val"].dim() > 2 for one in node.args[:2])
    return (math.prod(shape[:-2]), *shape[-2:]) if is_batched else (math.prod(shape[:-1]), shape[-1])


@cache
def _formulas() -> Known[tuple[Formula | None]]:
    """Return what is known in this process: a value, its views and which of them are read -> their formula."""
    return Known()

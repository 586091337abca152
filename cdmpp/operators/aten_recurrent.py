"""Recurrent layers of an exported graph -> the products and gates that cuDNN and oneDNN run for them in one call.

Nobody measured such a call here: it is composed of products that were, in the order in which cuDNN's standard algorithm
runs them. The products of the inputs of all steps are one; those of the states come one after the other; the gradients
of weights are one product over all steps. Layers and directions run one after the other, which cuDNN may overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.backward import Gradient
from cdmpp.operators.operator import EagerOperator

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Name in ATen -> gates, each of which has a weight of every input and state."""
_KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}
"""Name -> vectors of a step that the backward pass reads: gates, the new state, and what a gate is multiplied by."""


class Recurrent(NamedTuple):
    """These are the sizes of a stack of recurrent layers, whose weights the node lists layer by layer."""

    name: str
    steps: int
    rows: int
    """Vectors of all steps: of packed sequences fewer than steps times sequences."""
    inputs: int
    """Length of a vector of the first layer's input."""
    hidden: int
    projected: int
    """Length of a state that is projected; 0: it is ``hidden``."""
    layers: int
    directions: int
    has_biases: bool
    dropout: float
    """Share that training drops between layers."""
    dtype: str
    itemsize: int

    @property
    def state(self) -> int:
        """Length of a state that the next step and the next layer read."""
        return self.projected or self.hidden

    @property
    def each(self) -> int:
        """Sequences in a step, on average rounded up."""
        return -(-self.rows // self.steps)

    @property
    def weights(self) -> int:
        """Parameters of one direction of a layer."""
        return (4 if self.has_biases else 2) + bool(self.projected)

    def width(self, layer: int) -> int:
        """Length of a vector that a layer reads."""
        return self.directions * self.state if layer else self.inputs

    @property
    def reserve_bytes(self) -> int:
        """Bytes that the backward pass reads besides inputs, results and weights: gates and states of all steps."""
        between = (self.layers - 1) * self.directions * self.state * (2 if self.dropout else 1)
        own = self.layers * self.directions * _KEPT[self.name] * self.hidden
        return self.itemsize * self.rows * (own + between)

    @property
    def workspace_bytes(self) -> int:
        """The same of oneDNN on CPUs, whose LSTM keeps a workspace: about so many, by what torch 2.13 was seen to keep.

        Of 16 sequences or more and states of 128 or more it is within a tenth; small states are filled up to more.
        """
        widest = sum(6 * max(self.width(layer), self.hidden) + 10 * self.hidden for layer in range(self.layers))
        between = (self.layers - 1) * self.directions * self.state
        return self.itemsize * self.rows * (self.directions * widest + between)


class RecurrentCalls(NamedTuple):
    """A node runs these operators; the fields are those of ``aten.Calls``."""

    operators: tuple[EagerOperator, ...]
    stands_for: str
    gradients: tuple[tuple[Gradient, ...], ...]
    reads: tuple[tuple[Any, ...], ...]


def recurrent_sizes(node: Any, name: str) -> Recurrent:
    """Read the sizes of a node ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``, of padded or packed sequences."""
    given = arguments_of(node)
    x, weights = given["input" if "input" in given else "data"], given["params"]
    *leading, inputs = shape_of(x)
    steps = leading[1 if given.get("batch_first") else 0] if len(leading) > 1 else leading[0]
    if "batch_sizes" in given:
        steps = shape_of(given["batch_sizes"])[0]
    gates, inner = shape_of(weights[1])
    hidden = gates // GATES[name]
    return Recurrent(
        name, steps, math.prod(leading), inputs, hidden, inner if inner != hidden else 0, int(given["num_layers"]),
        2 if given["bidirectional"] else 1, bool(given["has_biases"]),
        float(given["dropout"]) if given["train"] and given["num_layers"] > 1 else 0.0,
        dtype_of(x), x.dtype.itemsize,
    )  # fmt: skip


def recurrent_of(node: Any, name: str) -> RecurrentCalls:
    """List the operators of a recurrent node, with the calls of their gradients and the weights that they read."""
    made = recurrent_sizes(node, name)
    params = next(value for value in node.args if isinstance(value, list | tuple) and len(value) >= made.weights)
    if name == "lstm":
        params = next(value for value in node.args[2:] if isinstance(value, list | tuple))
    others = tuple(one for one in node.all_input_nodes if one not in params)
    rows = list(_direction_calls(made, params))
    first = others + rows[0][2]
    operators, gradients, reads = zip(*((rows[0][0], rows[0][1], first), *rows[1:]), strict=True)
    stands_for = f"{name}, {made.layers} x {made.directions} of {made.steps} steps"
    return RecurrentCalls(operators, stands_for, gradients, reads)


def _direction_calls(
    made: Recurrent, params: Any
) -> Iterator[tuple[EagerOperator, tuple[Gradient, ...], tuple[Any, ...]]]:
    for layer in range(made.layers):
        for direction in range(made.directions):
            place = (layer * made.directions + direction) * made.weights
            yield _input_product(made, layer), _weight_gradients(made, layer), tuple(params[place:][: made.weights])
            for _ in range(made.steps):
                yield from ((one, gradient, ()) for one, gradient in _step(made))
        if made.dropout and layer < made.layers - 1:
            mask = {"rows": made.rows, "cols": made.directions * made.state}
            dropped = EagerOperator("mul", mask, made.dtype)
            yield dropped, (Gradient(dropped, "inputs"),), ()


def _product(made: Recurrent, rows: int, inner: int, cols: int, bias: bool = False) -> EagerOperator:
    return EagerOperator("linear", {"rows": rows, "inner": inner, "cols": cols, "bias": int(bias)}, made.dtype)


def _input_product(made: Recurrent, layer: int) -> EagerOperator:
    return _product(made, made.rows, made.width(layer), GATES[made.name] * made.hidden, made.has_biases)


def _step(made: Recurrent) -> Iterator[tuple[EagerOperator, tuple[Gradient, ...]]]:
    """One step of one direction: the product of the state, the gates, and the projection if there is one."""
    gates, each = GATES[made.name] * made.hidden, made.each
    product, back = _product(made, each, made.state, gates), _product(made, each, gates, made.state)
    yield product, (Gradient(back, "inputs"),)
    states = (3 if made.name == "lstm" else 2) * made.hidden
    elements = each * (gates + states)
    pointwise = moved(Traffic(elements, elements * made.itemsize), made.dtype)
    elements = each * (2 * gates + states)
    yield pointwise, (Gradient(moved(Traffic(elements, elements * made.itemsize), made.dtype), "inputs"),)
    if made.projected:
        project, back = (_product(made, each, *sizes) for sizes in ((made.hidden, made.projected),
                                                                    (made.projected, made.hidden)))  # fmt: skip
        yield project, (Gradient(back, "inputs"),)


def _weight_gradients(made: Recurrent, layer: int) -> tuple[Gradient, ...]:
    """Gradients of a direction's input and weights, each one product over all steps."""
    gates, rows, width = GATES[made.name] * made.hidden, made.rows, made.width(layer)
    found = [Gradient(_product(made, rows, gates, width), "inputs", True)]
    found += [Gradient(_product(made, gates, rows, inner), "weight") for inner in (width, made.state)]
    if made.has_biases:
        found += 2 * [Gradient(EagerOperator("mean", {"rows": gates, "cols": rows}, made.dtype), "weight")]
    if made.projected:
        found.append(Gradient(_product(made, made.projected, rows, made.hidden), "weight"))
    return tuple(found)

"""The gates of one step of a recurrent cell, one kernel of a GPU -> what moves as much; nobody measured it."""

from __future__ import annotations

from typing import Any, NamedTuple

from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, moved
from cdmpp.operators.backward import Gradient
from cdmpp.operators.operator import EagerOperator

CELLS = ("lstm_cell", "gru_cell")


class Moved(NamedTuple):
    """A kernel reads and writes so many vectors as long as a state, of each sequence."""

    forward: int
    backward: int
    sums: int
    """Sums over gradients of gates, where there are biases."""


_MOVED = {"lstm_cell": Moved(15, 13, 1), "gru_cell": Moved(13, 14, 2)}
"""Forward: both products' gates, the state before, new states, a workspace of 4 (LSTM) or 5 (GRU) vectors. Backward:
gradients of states, states and workspace, gradients of gates (of a GRU twice) and of the state before."""


def cell_of(node: Any, name: str) -> tuple[EagerOperator, tuple[Gradient, ...]]:
    """Return the copy that moves as much as the gates of a step, and the calls of its gradient."""
    given = arguments_of(node)
    state, dtype = given["state"], dtype_of(given["state"])
    rows, length = shape_of(state)
    both = _MOVED[name]
    forward, backward = (
        moved(Traffic(many * rows * length, many * rows * length * state.dtype.itemsize), dtype)
        for many in (both.forward, both.backward)
    )
    gradients = [Gradient(backward, "inputs")]
    if given.get("b_x") is not None:
        gates = shape_of(given["b_x"])[0]
        summed = EagerOperator("mean", {"rows": gates, "cols": rows}, dtype)
        gradients += both.sums * [Gradient(summed, "weight")]
    return forward, tuple(gradients)

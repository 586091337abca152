"""Cells of recurrent networks while a network is exported: the calls that PyTorch makes of one step, by the device.

A GPU multiplies the input and the state, and has one kernel for the gates of an LSTM or a GRU; a CPU runs the gates one
by one, in place. That of a plain cell is the same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from cdmpp.programs.patch import patched

GATES = {"lstm_cell": 4, "gru_cell": 3}
"""Name of a cell whose gates are one kernel on a GPU -> gates."""


@contextmanager
def cells_as_on(kind: str) -> Iterator[None]:
    """Let ``LSTMCell``, ``GRUCell`` and ``RNNCell`` run the calls that they make on a device, ``cpu`` or ``gpu``."""
    import torch

    lstm, gru = (_lstm, _gru) if kind == "cpu" else (_fused("lstm_cell"), _fused("gru_cell"))
    cells = {"lstm_cell": lstm, "gru_cell": gru, "rnn_tanh_cell": _plain("tanh"), "rnn_relu_cell": _plain("relu")}
    with ExitStack() as stack:
        for name, function in cells.items():
            for owner in (torch, torch._VF):
                stack.enter_context(patched(owner, name, function))
        yield


def _gates(x: Any, state: Any, weights: Any, biases: Any) -> Any:
    from torch.nn import functional

    return functional.linear(x, weights[0], biases[0]), functional.linear(state, weights[1], biases[1])


def _lstm(x: Any, states: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    import torch

    given, held = _gates(x, states[0], (w_x, w_h), (b_x, b_h))
    i, f, g, o = torch.unsafe_chunk(held.add_(given), 4, 1)
    cell = (f.sigmoid_() * states[1]).add_(i.sigmoid_() * g.tanh_())
    return o.sigmoid_() * cell.tanh(), cell


def _gru(x: Any, state: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    import torch

    given, held = (torch.unsafe_chunk(one, 3, 1) for one in _gates(x, state, (w_x, w_h), (b_x, b_h)))
    reset, update = held[0].add_(given[0]).sigmoid_(), held[1].add_(given[1]).sigmoid_()
    new = given[2].add(held[2].mul_(reset)).tanh_()
    return (state - new).mul_(update).add_(new)


def _plain(activation: str) -> Callable[..., Any]:
    def cell(x: Any, state: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
        given, held = _gates(x, state, (w_x, w_h), (b_x, b_h))
        return getattr(held.add_(given), activation)()

    return cell


def _fused(name: str) -> Callable[..., Any]:
    def cell(x: Any, states: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
        first, last = states if name == "lstm_cell" else (states, states)
        given, held = _gates(x, first, (w_x, w_h), (None, None))
        made = _operator(name)(given, held, last, b_x, b_h)
        return tuple(made[:2]) if name == "lstm_cell" else made[0]

    return cell


@cache
def _operator(name: str) -> Any:
    """The gates of a step as an operator of a graph, which keeps what its backward pass reads."""
    import torch

    many = {"lstm_cell": 3, "gru_cell": 2}[name]
    results = ", ".join(["Tensor"] * many)
    schema = f"(Tensor given, Tensor held, Tensor state, Tensor? b_x, Tensor? b_h) -> ({results})"
    kept = {"lstm_cell": 4, "gru_cell": 5}[name]
    """Vectors of a workspace, as long as a state."""

    def made(given, held, state, b_x, b_h):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        workspace = state.new_empty(state.shape[0], kept * state.shape[1])
        return (*(torch.empty_like(state) for _ in range(many - 1)), workspace)

    operator = torch.library.custom_op(f"cdmpp::{name}", made, mutates_args=(), schema=schema)
    operator.register_fake(made)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.has_biases = inputs[3] is not None
        ctx.save_for_backward(inputs[2], *output[1:])

    def backward(ctx: Any, *gradients: Any) -> Any:
        state = ctx.saved_tensors[0]
        rows, length = state.shape
        gates = [state.new_empty(rows, GATES[name] * length) for _ in range(2)]
        biases = [state.new_empty(GATES[name] * length) if ctx.has_biases else None for _ in range(2)]
        return (*gates, torch.empty_like(state), *biases)

    torch.library.register_autograd(f"cdmpp::{name}", backward, setup_context=setup)
    return operator

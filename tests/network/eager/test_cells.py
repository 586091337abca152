"""Recurrent cells in a loop of the user's: calls of a real step on a CPU, and the fused gates of a GPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from cdmpp.network.eager.read import read_run
from cdmpp.network.workload import Workload
from cdmpp.programs.cells import GATES
from tests.network.dispatched import predicted_step, real_step

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 8, 16
CELLS = {
    "lstm_cell": lambda **options: nn.LSTMCell(INPUTS, HIDDEN, **options),
    "gru_cell": lambda **options: nn.GRUCell(INPUTS, HIDDEN, **options),
    "rnn_tanh_cell": lambda **options: nn.RNNCell(INPUTS, HIDDEN, **options),
    "rnn_relu_cell": lambda **options: nn.RNNCell(INPUTS, HIDDEN, nonlinearity="relu", **options),
}


class Loop(nn.Module):
    """A cell runs over the steps of a sequence, and a head over all of its states."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(HIDDEN, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[1], HIDDEN)
        states = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        found = []
        for one in x:
            states = self.cell(one, states)
            found.append(states[0] if isinstance(states, tuple) else states)
        return self.head(torch.stack(found))


@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_on_a_cpu_its_products_are_those_of_a_real_step(name, options):
    torch.manual_seed(0)
    model, x = Loop(CELLS[name](**options)), torch.randn(STEPS, BATCH, INPUTS)
    found, real = predicted_step(model, (x,)), real_step(model, (x,))
    for phase in ("forward", "backward"):
        counted, run = (
            {key: n for key, n in getattr(one, phase).items() if key[0] == "product"} for one in (found, real)
        )
        assert counted == run
    assert sum(found.forward.values()) - sum(real.forward.values()) in (0, STEPS)  # tanh in place is logged by its name
    assert found.saved_bytes == real.saved_bytes  # gates lie in one storage, which counts once


@pytest.mark.parametrize("name", GATES)
def test_a_gpu_has_one_kernel_for_the_gates(name):
    model, x = Loop(CELLS[name]()), torch.randn(STEPS, BATCH, INPUTS)
    read = read_run(Workload(model, x, mode="forward_backward"))
    calls = [(call, read.operators[call.task_id]) for call in read.graph.calls]
    gates = [one for call, one in calls if call.name.startswith(name) and call.forward is None]
    elements = {"lstm_cell": 15, "gru_cell": 13}[name] * BATCH * HIDDEN
    assert len(gates) == STEPS and all(one.io_bytes == pytest.approx(4 * elements) for one in gates)
    forward = Counter(one.matmul[1:] for call, one in calls if one.kind.family == "linear" and call.forward is None)
    width = GATES[name] * HIDDEN
    assert forward == {
        (BATCH, INPUTS, width): STEPS, (BATCH, HIDDEN, width): STEPS, (STEPS * BATCH, HIDDEN, 4): 1
    }  # fmt: skip
    sums = [one for call, one in calls if one.name == "mean" and call.name.startswith(name)]
    assert len(sums) == STEPS * {"lstm_cell": 1, "gru_cell": 2}[name]
    kept = read.graph.calls
    workspace = {"lstm_cell": 4, "gru_cell": 5}[name] * 4 * BATCH * HIDDEN
    assert sum((call.saved_bytes or 0) >= workspace for call in kept if call.name.startswith(name)) == STEPS
    assert {read.stand_in_for(place) for place, (call, _) in enumerate(calls) if call.name.startswith(name)} == {name}


def test_work_is_the_closed_form_on_both():
    model, x = CELLS["lstm_cell"](), torch.randn(BATCH, INPUTS)
    for place in ("cpu", "gpu"):
        read = read_run(Workload(model, x), place)
        operators = [read.operators[call.task_id] for call in read.graph.calls]
        many = [one.matmul for one in operators if one.kind.family == "linear"]
        assert sum(rows * inner * cols for _, rows, inner, cols in many) == BATCH * 4 * HIDDEN * (INPUTS + HIDDEN)


def test_torch_has_its_own_cells_again():
    before = torch.lstm_cell, torch._VF.gru_cell
    read_run(Workload(CELLS["gru_cell"](), torch.randn(BATCH, INPUTS)))
    assert (torch.lstm_cell, torch._VF.gru_cell) == before

"""Recurrent layers: the products of their native run on a CPU, closed forms of their work, one dispatch."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cdmpp import devices
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.single_price import KERNEL_S, STAND_IN_FACTOR
from cdmpp.network.predict import predict_read
from cdmpp.network.workload import Workload
from cdmpp.predict.flags import STAND_IN
from cdmpp.predict.predictor import Predictor
from tests.network.dispatched import Log, predicted_step, real_step

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 8, 16
LAYERS = {
    "lstm": (nn.LSTM, {}, 4),
    "lstm, two ways": (nn.LSTM, {"bidirectional": True, "batch_first": True}, 4),
    "lstm, projected": (nn.LSTM, {"proj_size": 6}, 4),
    "lstm without biases": (nn.LSTM, {"bias": False}, 4),
    "gru": (nn.GRU, {}, 3),
    "gru, two ways": (nn.GRU, {"bidirectional": True}, 3),
    "rnn": (nn.RNN, {"batch_first": True}, 1),
    "rnn, relu": (nn.RNN, {"nonlinearity": "relu"}, 1),
}


def made(name: str):
    """A module, what it reads, and its gates."""
    kind, options, gates = LAYERS[name]
    x = torch.randn(BATCH, STEPS, INPUTS) if options.get("batch_first") else torch.randn(STEPS, BATCH, INPUTS)
    return kind(INPUTS, HIDDEN, 2, **options), x, gates


def products(read, calls) -> Counter:
    operators = [read.operators[call.task_id] for call in calls]
    return Counter(("product", *one.matmul, "torch.float32") for one in operators if one.kind.family == "linear")


def work(counted: Counter) -> int:
    return sum(2 * count * many * rows * inner * cols for (_, many, rows, inner, cols, _), count in counted.items())


def phases(read):
    """Calls of the forward and of the backward pass, without sums of gradients."""
    return [one for one in read.graph.calls if one.forward is None], [
        one for one in read.graph.calls if one.forward is not None
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_products_of_the_native_run(name):
    model, x, _ = made(name)
    with torch.backends.mkldnn.flags(enabled=False), Log() as log:
        model(x)
    real = Counter({key: count for key, count in log.seen.items() if key[0] == "product"})
    read = read_run(Workload(model, x))
    assert products(read, read.graph.calls) == real
    assert len(read.graph.calls) == sum(real.values()) + 2 * STEPS * (2 if model.bidirectional else 1) + (
        1 if name.startswith(("gru", "rnn")) else 2  # the zeros of the first states
    )


@pytest.mark.parametrize("name", LAYERS)
def test_its_work_is_the_closed_form_and_twice_as_much_backwards(name):
    model, x, gates = made(name)
    state, ways = model.proj_size or HIDDEN, 2 if model.bidirectional else 1
    each = [gates * HIDDEN * (inputs + state) + model.proj_size * HIDDEN for inputs in (INPUTS, ways * state)]
    expected = 2 * STEPS * BATCH * ways * sum(each)
    read = read_run(Workload(model, x, mode="forward_backward"))
    forward, backward = (products(read, calls) for calls in phases(read))
    assert (work(forward), work(backward)) == (expected, 2 * expected)
    given = x.requires_grad_()
    states = [
        torch.zeros(2 * ways, BATCH, size, requires_grad=True)
        for size in ([state, HIDDEN] if name.startswith("lstm") else [HIDDEN])
    ]
    with torch.backends.mkldnn.flags(enabled=False):
        total = model(given, tuple(states) if len(states) > 1 else states[0])[0].sum()
        with Log() as log:
            total.backward()
    assert work(Counter({key: n for key, n in log.seen.items() if key[0] == "product"})) == 2 * expected


def test_every_weight_has_its_own_gradient():
    model, x, _ = made("lstm, two ways")
    read = read_run(Workload(model, x, mode="forward_backward"))
    adds = [call for call in phases(read)[1] if read.operators[call.task_id].name == "add"]
    written = Counter(call.output_bytes for call in adds)
    assert written == Counter(one.numel() * 4 for one in model.parameters())
    weights = [call for call in phases(read)[1] if read.operators[call.task_id].name in ("linear", "mean")]
    made_by = Counter(call.output_bytes for call in weights if call.output_bytes in written)
    assert all(made_by[size] >= count for size, count in written.items())


def test_autograd_keeps_a_reserve_of_gates_and_states():
    model, x, _ = made("lstm")
    read = read_run(Workload(model, x, mode="forward_backward"))
    kept = max(one.saved_bytes or 0 for one in read.graph.calls)
    rows = STEPS * BATCH
    reserve = 4 * rows * (2 * 6 * HIDDEN + HIDDEN)  # gates, cells and tanh of them; what is between the layers
    assert kept == reserve + 4 * (rows * HIDDEN + 2 * 2 * BATCH * HIDDEN)  # and the results


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
def test_on_cpus_an_lstm_keeps_about_what_onednn_does(options):
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(64, 256, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0]

    model, x = First(), torch.randn(16, 8, 64)
    predicted, real = (step(model, (x,)).saved_bytes for step in (predicted_step, real_step))
    assert predicted == pytest.approx(real, rel=0.1)


class Packing(nn.Module):
    def __init__(self, is_sorted: bool) -> None:
        super().__init__()
        self.inner, self.is_sorted = nn.LSTM(INPUTS, HIDDEN, batch_first=True), is_sorted

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.is_sorted)
        return pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_count_as_long_as_the_longest_and_it_is_said(is_sorted):
    read = read_run(Workload(Packing(is_sorted), (torch.randn(BATCH, STEPS, INPUTS), torch.tensor([5, 4, 2]))))
    padded = read_run(Workload(nn.LSTM(INPUTS, HIDDEN), torch.randn(STEPS, BATCH, INPUTS)))
    assert products(read, read.graph.calls) == products(padded, padded.graph.calls)
    assert any("as long as the longest" in warning for warning in read.warnings)
    assert not padded.warnings and nn.LSTM.forward.__module__ == "torch.nn.modules.rnn"


class Given(Predictor):
    """It answers ten microseconds a call, of which the device is busy a tenth."""

    trained_on, power_states = {"t4": devices.get("t4")}, {}

    def __init__(self) -> None:
        pass

    def predict(self, operators, device):
        ones = np.ones(len(operators))
        return SimpleNamespace(latency_s=1e-5 * ones, intervals={0.8: (0.8e-5 * ones, 1.25e-5 * ones)}, flags=[()] * 99)

    def device_share(self, operators, device):
        return np.full(len(operators), 0.1)


def test_the_host_dispatches_it_once_and_the_interval_is_wide():
    read = read_run(Workload(nn.RNN(INPUTS, HIDDEN), torch.randn(STEPS, BATCH, INPUTS)))
    found = predict_read(read, devices.get("t4"), EagerRuntime(Given()))
    calls = 1 + 2 * STEPS
    assert len(read.graph.calls) == 1 + calls  # with the zeros of the first state
    assert found.latency_s == pytest.approx(2 * 9e-6 + calls * (1e-6 + KERNEL_S))
    inside = [kernel for kernel in found.kernels if kernel.stands_for]
    assert {kernel.stands_for for kernel in inside} == {"rnn_tanh, 1 x 1 of 5 steps"}
    for kernel in inside:
        low, high = kernel.intervals[0.8]
        assert high / low == pytest.approx(STAND_IN_FACTOR**2 * 1.25 / 0.8) and STAND_IN in kernel.flags
    assert any("rnn_tanh" in warning and "is answered as linear" in warning for warning in found.warnings)

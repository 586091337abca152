"""Training steps by PyTorch's own kernels: phases, gradients, what autograd keeps, the update, several ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.steps.from_prediction import graph_of
from tests.network.eager.most_held import most_held


class Small(nn.Module):
    """A residual convolution network with a pooling, and a frozen stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False).requires_grad_(requires_grad=False)
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.norm(self.conv(x)))
        return self.head(nn.functional.max_pool2d(x, 2, 2).mean((2, 3)))


@pytest.fixture(scope="module")
def step():
    return read_step(Workload(Small(), torch.randn(4, 3, 32, 32), optimizer="adamw", mode="training_step"))


class _Spare(nn.Module):
    """Has a layer that no result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spare, self.last = (nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("mask", torch.ones(32).bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * self.mask)


@pytest.mark.parametrize("runtime", ["torch", pytest.param("tvm", marks=pytest.mark.tvm)])
def test_parameters_come_in_the_order_of_the_model_and_so_do_unused_ones(runtime):
    workload = Workload(_Spare(), torch.randn(4, 32), optimizer="sgd", mode="training_step")
    made = read_step(workload).step if runtime == "torch" else cdmpp.read_step(workload, fallback=False)
    assert [(one.name, one.rows, one.is_used) for one in made.parameters] == [
        (f"{layer}.{name}", 32, layer != "spare")
        for layer in ("first", "spare", "last") for name in ("weight", "bias")
    ]  # fmt: skip
    assert made.memory.gradient_bytes == 2 * 4 * (32 * 32 + 32)
    assert [(one.bytes, one.dtype) for one in made.buffers] == [(32, "bool")]
    assert not any(name.startswith("spare") for name in made.ready_order)


def test_phases_follow_one_another_and_gradients_come_last_layer_first(step):
    made, read = step.step, step
    phases = [call.phase for call in made.calls]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    assert made.ready_order == ("head.weight", "head.bias", "norm.weight", "norm.bias", "conv.weight")
    sizes = {name: value.numel() * 4 for name, value in Small().named_parameters() if value.requires_grad}
    assert {one.name: one.bytes for one in made.parameters} == sizes
    assert {made.calls[one.ready].phase for one in made.parameters} == {"backward"}
    operators = [str(read.operators[call.call.task_id]) for call in made.calls]
    convolutions = [name for name in operators if name.startswith("conv2d")]
    assert len(convolutions) == 2 + 1  # two forward; of the second the weight's gradient, for its input needs none


@pytest.mark.parametrize(("optimizer", "wide"), [("adamw", 1024), ("adam", 8), ("sgd", 1024)])
def test_the_peak_is_that_of_torchs_allocator(optimizer, wide):
    """With wide layers Adam's denominators decide, with a large batch what the backward pass reads."""
    model = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, 2 * wide), nn.ReLU(), nn.Linear(2 * wide, 10))
    rows = 8 if wide > 64 else 4096
    made = read_step(Workload(model, torch.randn(rows, 64), optimizer=optimizer, mode="training_step"), "cpu").step
    parameters = list(model.parameters())
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    kind = kinds.get(optimizer, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9))(parameters)
    x, target = torch.randn(rows, 64), torch.zeros(rows, dtype=torch.int64)

    def one() -> None:
        nn.functional.cross_entropy(model(x), target).backward()
        kind.step()
        kind.zero_grad(set_to_none=True)

    own = most_held(one)
    size = sum(value.numel() * 4 for value in parameters)
    assert made.peak_bytes == pytest.approx(own + (1 + {"sgd": 1}.get(optimizer, 2)) * size + x.numel() * 4, rel=0.1)


class Attention(nn.Module):
    """Turned by a table, fused where nothing is dropped; a dropout behind an activation; a frozen layer."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.frozen = nn.Linear(64, 64).requires_grad_(requires_grad=False)
        self.three, self.out, self.last = nn.Linear(64, 192), nn.Linear(64, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)
        self.register_buffer("table", torch.rand(32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.out(x))
        query, key, value = (self.three(x * self.table).unflatten(-1, (3, 4, 16)).transpose(1, 3)).unbind(2)
        x = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=self.drop)
        x = self.last(x.transpose(1, 2).flatten(2))
        x = nn.functional.dropout(torch.relu(x), self.drop, self.training) if self.drop else torch.relu(x)
        return self.head(x).mean(1)


def kept_bytes(model, x):
    """What autograd keeps of one forward pass with its loss."""
    target = torch.zeros(len(x), dtype=torch.int64)
    given = (*model.parameters(), *model.buffers(), x, target)
    seen, own = {}, {value.untyped_storage().data_ptr() for value in given}

    def pack(value):
        seen.setdefault(value.untyped_storage().data_ptr(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        output = model(x)
        loss = nn.functional.cross_entropy(output, target)
    assert loss.requires_grad
    return sum(value.untyped_storage().nbytes() for key, value in seen.items() if key not in own)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_what_is_kept_of_attention_dropouts_and_frozen_layers(drop):
    model, x = Attention(drop).train(), torch.randn(4, 32, 64)
    made = read_step(Workload(model, x, mode="training_step"), "cpu").step
    assert made.saved_activation_bytes == pytest.approx(kept_bytes(model, x), rel=1e-9)
    on_gpu = read_step(Workload(model, x, mode="training_step"), "gpu").step
    whole = 4 * 4 * 32 * 32 * 4  # the weights of attention, which a fused kernel does not write
    if drop:
        masks = (4 - 1) * 4 * 32 * 64  # of the other dropout, one byte an element instead of four
        lost = made.saved_activation_bytes - on_gpu.saved_activation_bytes - masks
        assert lost == pytest.approx(3 * whole, rel=0.02)
    else:
        seeds = 2 * 8  # of a fused kernel's random numbers, though it draws none
        assert on_gpu.saved_activation_bytes == made.saved_activation_bytes + seeds


def test_memory_is_what_torch_holds(step):
    made = step.step
    model = Small()
    kept = kept_bytes(model, torch.randn(4, 3, 32, 32))
    assert made.saved_activation_bytes == kept
    every = sum(value.numel() * 4 for value in model.parameters())
    trained = sum(one.bytes for one in made.parameters)
    memory = made.memory
    assert (memory.parameter_bytes, memory.gradient_bytes, memory.state_bytes) == (every, trained, 2 * trained)
    assert made.peak_bytes > every + 2 * trained + made.saved_activation_bytes


def test_a_table_is_written_whole_and_what_two_read_is_ready_after_the_last():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.table(tokens)) @ self.table.weight.t()

    read = read_step(Workload(Tied(), torch.zeros(2, 4, dtype=torch.int64), optimizer="none", mode="training_step"))
    made = read.step
    backward = [str(read.operators[call.call.task_id]) for call in made.calls if call.phase == "backward"]
    assert backward[-3:] == ["embedding 8x8", "copy 1x400", "add 1x400"]
    (only,) = made.parameters
    assert (only.name, only.bytes, only.ready) == ("table.weight", 50 * 8 * 4, len(made.calls) - 1)


def test_what_trains_nothing_is_refused():
    frozen = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(requires_grad=False)
    workload = cdmpp.Workload(frozen, torch.randn(4, 8), loss="mse")
    with pytest.raises(CdmppError, match="no parameter of Sequential requires a gradient"):
        cdmpp.predict_step(workload, device="h100", runtime="torch")


def test_a_step_on_several_gpus_needs_no_tvm(tmp_path):
    code = """
import sys; sys.modules['tvm'] = None
import torch, cdmpp
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)])
workload = cdmpp.Workload(net, torch.randn(4096, 2048), optimizer='sgd', loss='mse')
found = cdmpp.predict_step(workload, device='h100', runtime='torch')
one, many = (cdmpp.replay_step(found, ranks=n, link='ethernet-10g') for n in (1, 4))
assert abs(one.iteration_s / found.latency_s - 1) < 1e-6, (one.iteration_s, found.latency_s)
assert many.iteration_s > 1.2 * found.latency_s
late = cdmpp.replay_step(found, ranks=4, link='nvlink4', slow={2: 2.0})
even = cdmpp.replay_step(found, ranks=4, link='nvlink4')
assert late.iteration_s > 1.5 * even.iteration_s and late.shares[2].compute_s > 1.9 * late.shares[1].compute_s
assert not any('optimizer is left out' in warning for warning in found.prediction.warnings)
plan = cdmpp.optimize_step(found, ranks=4, link='ethernet-10g')
assert plan.peak_bytes > 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_step_of_a_large_batch_needs_no_memory_for_it():
    """12 GB of images, and as many results as of one that fits, but for what does not grow with the batch."""
    network, many = "torchvision:resnet18", 10_000
    few, lot = (read_step(Workload(network, batch=n, mode="training_step"), "cpu").step for n in (2, 2 * many))
    channels = sum(value.numel() for key, value in buffers_of(network) if key.endswith("running_mean"))
    fixed = 2 * 4 * channels + 4  # mean and deviation of each channel, the loss's sum of weights
    assert lot.saved_activation_bytes - fixed == many * (few.saved_activation_bytes - fixed)
    assert lot.memory.parameter_bytes == few.memory.parameter_bytes
    assert lot.memory.input_bytes == many * few.memory.input_bytes == many * 2 * (3 * 224 * 224 * 4 + 8)
    assert len(lot.calls) == len(few.calls)


def buffers_of(name):
    return read_torch(Workload(name)).model.named_buffers()


def test_pauses_of_the_host_are_gaps_of_the_graph():
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    workload = cdmpp.Workload(net, torch.randn(4, 8), optimizer="sgd", loss="mse")
    found = cdmpp.predict_step(workload, device="h100", runtime="torch")
    (rank,) = graph_of(found).ranks
    total_s = rank.start_s + sum(one.duration_s + one.gap_s for one in rank.ops)
    assert total_s == pytest.approx(found.latency_s)
    assert sum(one.gap_s for one in rank.ops) > sum(one.duration_s for one in rank.ops)  # so small


def test_double_precision_and_options_of_the_other_runtime_are_refused(capsys):
    given = ["step", "gpt2", "--device", "h100", "--runtime", "torch"]
    for words, told in ((["--schedule", "untuned"], "is of --runtime tvm"), (["--no-fallback"], "is of --runtime tvm")):
        assert cli.main([*given, *words]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(CdmppError, match="has parameters of float64: .* call .float"):
        read_step(Workload(nn.Linear(4, 4).double(), torch.randn(2, 4).double(), mode="training_step"))


def test_calls_of_the_backward_pass_name_theirs_of_the_forward_pass_and_results_leave_out_what_is_only_kept():
    """By hand: a max pool of 2 x 2 writes a quarter of its input, and indices of 8 bytes for its backward pass."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
    step = read_step(Workload(module, torch.randn(2, 3, 8, 8), loss="mse", mode="training_step")).step
    named = {call.call.name: call.call for call in step.calls}
    pool = next(call for name, call in named.items() if "pool" in name and "backward" not in name)
    assert pool.result_bytes == 4 * 2 * 4 * 4 * 4
    assert pool.output_bytes == 3 * pool.result_bytes
    for call in step.calls:
        if call.phase == "backward":
            assert call.call.name.startswith(step.calls[call.call.forward].call.name)
        else:
            assert call.call.forward is None


def test_the_gradient_of_a_table_is_held_once():
    model = nn.Sequential(nn.Embedding(5000, 16), nn.Linear(16, 4))
    asked = {"loss": lambda y: y.sum(), "optimizer": None, "mode": "training_step"}
    step = read_step(Workload(model, torch.randint(0, 5000, (2, 8)), **asked), "cpu").step
    table = 5000 * 16 * 4
    assert table < step.memory.live_bytes < 1.1 * table


def test_a_loss_of_torchs_own_functions_is_taken():
    read = read_step(Workload(nn.Linear(4, 3), torch.randn(2, 4), optimizer=None, loss=torch.sum, mode="training_step"))
    assert [one.phase for one in read.step.calls][:2] == ["forward", "forward"] and len(read.step.parameters) == 2


class Chosen(nn.Module):
    """Two parts of a result are added; a third reader, of no gradient, looks at all of it."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks, self.layer = looks, nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        one, two = y.chunk(2, -1)
        found = (one * two).sum()
        return found + y.view(-1, 4, 8).argmax(-1).sum() * 0 if self.looks else found


def test_readers_without_a_gradient_change_no_backward_pass():
    def backward(looks):
        read = read_step(Workload(Chosen(looks), torch.randn(4, 8), loss=lambda out: out, mode="training_step"), "cpu")
        gradients = [one.call for one in read.step.calls if one.phase == "backward" and "linear" in one.call.name]
        return [str(read.operators[one.task_id]) for one in gradients]

    assert backward(looks=True) == backward(looks=False)

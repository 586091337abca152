"""Training steps of runtime torch-compile: phases, the update, memory; forward and backward beside Inductor's code."""

import pytest
import torch
from torch import nn

import cdmpp
from benchmarks.compiled.__main__ import NETWORKS, compared
from cdmpp import Workload, cli, devices
from cdmpp.errors import CdmppError, UnsupportedNetworkError, UsageError
from cdmpp.network.eager.step import read_step
from cdmpp.network.inductor.buffers import peak_bytes
from cdmpp.network.inductor.kernel import Kernel
from cdmpp.network.inductor.runtime import InductorRuntime
from cdmpp.network.inductor.step import read_inductor_step
from cdmpp.operators.operator import PRODUCTS

H100 = devices.get("h100")


class Small(nn.Module):
    """A frozen layer, a norm with buffers, and a layer that no result depends on."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.spare, self.frozen = nn.Linear(3, 3), nn.Linear(64, 64).requires_grad_(requires_grad=False)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.frozen(self.first(x)))))


def _workload(**others):
    return Workload(Small(), torch.zeros(512, 64), mode="training_step", **others)


@pytest.fixture(scope="module")
def read():
    return read_inductor_step(_workload(), H100)


def test_parameters_and_memory_are_those_of_an_eager_step(read):
    step, eager = read.step, read_step(_workload(), "sm_90").step
    assert [(one.name, one.bytes, one.is_used, one.rows) for one in step.parameters] == [
        (one.name, one.bytes, one.is_used, one.rows) for one in eager.parameters
    ]
    assert [(one.name, one.bytes) for one in step.frozen] == [("frozen.weight", 16384), ("frozen.bias", 256)]
    assert step.buffers == eager.buffers
    for name in ("parameter_bytes", "gradient_bytes", "state_bytes", "buffer_bytes", "input_bytes", "update_bytes"):
        assert getattr(step.memory, name) == getattr(eager.memory, name), name
    assert step.counts["update"] == eager.counts["update"]


def test_the_backward_pass_hands_over_all_gradients_at_its_end(read):
    backward = [place for place, call in enumerate(read.step.calls) if call.phase == "backward"]
    assert {one.ready for one in read.step.parameters if one.is_used} == {backward[-1]}
    forward = [place for place, call in enumerate(read.step.calls) if call.phase == "forward"]
    assert any(source in forward for place in backward for source in read.step.calls[place].call.inputs)


def test_phases_sum_up_and_cuda_graphs_leave_the_update_to_the_host():
    alone, replayed = (
        cdmpp.predict_step(_workload(), device="h100", runtime="torch-compile", cuda_graphs=graphs, progress=False)
        for graphs in (False, True)
    )
    assert sum(alone.phase_s.values()) == pytest.approx(alone.latency_s)
    dispatched = {
        name
        for name, span in replayed.prediction.timeline.spans.items()
        if "dispatch" in name and span.end_s > span.start_s
    }
    assert dispatched and all(name.startswith("update") for name in dispatched)
    assert replayed.phase_s["forward"] < alone.phase_s["forward"]


def test_no_update_and_no_gradient():
    assert read_inductor_step(_workload(optimizer=None), H100).step.counts["update"] == 0
    still = Small().requires_grad_(requires_grad=False)
    with pytest.raises(CdmppError, match="depends on no parameter|nothing to train|does not require grad"):
        read_inductor_step(Workload(still, torch.zeros(512, 64), mode="training_step"), H100)


def test_buffers_live_from_their_writer_to_their_last_reader():
    first = Kernel("a", ("given",), (("x", 100), ("y", 10)), 0, 0)
    second = Kernel("b", ("x",), (("x2", 0),), 0, 0)  # writes into x
    third = Kernel("c", ("x2",), (("z", 50),), 0, 0)
    assert peak_bytes([first, second, third], {"given": 7}, ["z"], {"x2": "x"}) == 100 + 50
    assert peak_bytes([first, second, third], {"given": 7}, ["z", "y"], {"x2": "x"}) == 100 + 10 + 50
    assert peak_bytes([first], {"given": 7}, [], {}) == 117
    part = Kernel("part", ("z",), (("z0", 50),), 0, 0, launches=False)  # of a tuple, which has no bytes itself
    tupled = Kernel("c", ("x2",), (("z", 0),), 0, 0)
    assert peak_bytes([first, second, tupled, part], {"given": 7}, ["z0"], {"x2": "x"}) == 100 + 50


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("mi300x", r"mi300x \(gfx942\).*other rules.*runtime torch"),
        ("p100", r"p100 \(sm_60\), older than Volta"),
        ("apple-m1-gpu", r"apple-m1-gpu \(metal\).*other rules"),
        ("xeon-icelake", "Inductor fuses otherwise for xeon-icelake"),
    ],
)
def test_devices_that_inductor_writes_other_kernels_for_are_refused(device, told):
    for mode in ("inference", "training_step"):
        with pytest.raises(UnsupportedNetworkError, match=told):
            InductorRuntime().read(Workload(Small(), torch.zeros(512, 64), mode=mode), devices.get(device))


def test_several_ranks_are_refused(capsys):
    found = cdmpp.predict_step(_workload(), device="h100", runtime="torch-compile", progress=False)
    with pytest.raises(UsageError, match="DistributedDataParallel cuts graphs at its buckets"):
        cdmpp.replay_step(found, ranks=2, link="nvlink3")
    asked = ["step", "bert_tiny", "--device", "h100", "--runtime", "torch-compile", "--ranks", "2", "--link", "nvlink3"]
    assert cli.main(asked)
    assert "--ranks is of --runtime torch" in capsys.readouterr().err


class Normed(nn.Module):
    """Products, a norm, a gate, and a sum that is wanted in another order."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 16)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.norm(self.up(x))) * torch.sigmoid(self.up(x)))


SMALL = (Normed(), torch.zeros(32, 64))


@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast"])
@pytest.mark.parametrize("name", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS)])
def test_launches_bytes_and_what_is_saved_are_those_of_the_generated_code(name, precision):
    given, batch = (SMALL, None) if name == "small" else ((name,), 2)
    found = compared(Workload(*given, batch=batch, mode="training_step", precision=precision))
    for phase in (found.forward, found.backward):
        assert phase.launches == phase.generated_launches
        assert phase.all_bytes == phase.inductor_bytes
        assert phase.fused_bytes == pytest.approx(phase.text_bytes, rel=0.06)
    predicted, tensors, copies, text = found.saved
    assert predicted == pytest.approx(tensors + copies, rel=0.001)
    assert predicted == pytest.approx(text, rel=0.02)  # it does not say of which type a part of a tuple is
    assert found.live[0] == pytest.approx(found.live[1], rel=0.05)


def _operators(read):
    return [read.operators[call.task_id] for call in read.graph.calls]


def _products(read):
    return sorted(f"{one} {one.dtype}" for one in _operators(read) if one.kind.family in PRODUCTS)


@pytest.mark.parametrize("precision", ["tf32", "bf16-autocast", "fp16-autocast"])
def test_products_run_in_the_types_of_an_eager_step(precision):
    workload = Workload(Normed(), torch.zeros(32, 64), mode="training_step", loss="mse", precision=precision)
    read, eager = read_inductor_step(workload, H100), read_step(workload, "sm_90")
    types = {one.split()[-1] for one in _products(read)}
    assert types == {one.split()[-1] for one in _products(eager)} and len(types) == 1
    assert read.step.counts["update"] == eager.step.counts["update"]
    assert read.step.memory.gradient_bytes == eager.step.memory.gradient_bytes


def test_an_own_region_of_autocast_casts_as_on_a_gpu():
    class Region(Normed):
        def forward(self, x):
            with torch.autocast("cuda", torch.bfloat16):
                return super().forward(x)

    workload = Workload(Region(), torch.zeros(32, 64), mode="training_step")
    assert {one.split()[-1] for one in _products(read_inductor_step(workload, H100))} == {"bfloat16"}


class Block(nn.Module):
    """Products between others, in a list of two: ``recompute`` wraps them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.h(x)


def _recomputed(how):
    workload = Workload(Blocks(), torch.zeros(128, 64), mode="training_step", loss="mse", recompute=how)
    return read_inductor_step(workload, H100)


def test_recomputed_blocks_save_less_and_run_products_again():
    stored, again = _recomputed("none"), _recomputed("full")
    assert again.step.saved_activation_bytes < 0.5 * stored.step.saved_activation_bytes
    assert len(_products(again)) > len(_products(stored))


def test_products_that_a_policy_stores_run_once():
    """The policy ``op`` stores every second product, so fewer run again than where whole blocks do."""
    stored, policy, again = (_recomputed(how) for how in ("none", "op", "full"))
    assert len(_products(stored)) < len(_products(policy)) < len(_products(again))
    sizes = [one.step.saved_activation_bytes for one in (again, policy, stored)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[1]


def test_attention_runs_again_with_its_block():
    workload = Workload("llama_small", batch=2, mode="training_step", precision="bf16", recompute="full")
    names = [call.name.split()[0] for call in _operators(read_inductor_step(workload, H100))]
    layers = names.count("cudnn_attention_backward")
    assert layers == 2 and names.count("cudnn_attention") == 2 * layers


def test_dropout_of_attention_decides_its_kernel():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(128, 128)

        def forward(self, x):
            heads = self.inner(x).view(2, 64, 2, 64).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)

    def attention(module):
        workload = Workload(module, torch.zeros(2, 64, 128), mode="training_step", loss="mse", precision="bf16")
        names = (f"{one}" for one in read_inductor_step(workload, H100).operators.values())
        return [name.split()[0] for name in names if "attention" in name and "dropout=1" in name]

    assert attention(Attends()) == ["flash_attention", "flash_attention_backward"]  # cuDNN drops sixteenths alone

"""Networks of runtime torch-compile: what is answered, and what is refused with its place."""

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import Workload, devices
from cdmpp.errors import UnsupportedNetworkError, UsageError
from cdmpp.network.inductor.fused import operator_for
from cdmpp.network.inductor.kernel import Kernel
from cdmpp.network.inductor.read import read_inductor
from cdmpp.network.predict import runtime_of

H100 = devices.get("h100")


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(256, 256), nn.LayerNorm(256)

    def forward(self, x):
        return self.norm(torch.relu(self.first(x)) * torch.sigmoid(x))


class Branches(Gated):
    def forward(self, x):
        return x if self.first(x).sum() > 0 else -x


class Selects(Gated):
    def forward(self, x):
        return self.first(x[x.sum(-1) > 0])


def test_a_product_stays_the_librarys_and_what_follows_is_one_kernel():
    read = read_inductor(Workload(Gated(), torch.zeros(512, 256)), H100)
    product, fused = read.kernels
    assert str(product.operators[0]) == "linear 512x256x256 bias=0" and fused.is_fused
    matrix, vector = 512 * 256 * 4, 256 * 4
    assert (fused.read_bytes, fused.written_bytes) == (2 * matrix + 3 * vector, matrix)
    assert fused.reduction == 256
    assert [call.inputs for call in read.graph.calls] == [(), (0,)]
    assert read.graph.weight_bytes == 4 * (256 * 256 + 3 * 256) and read.graph.input_bytes == matrix


def test_a_backward_pass_reads_what_the_forward_pass_saved():
    read = read_inductor(Workload(Gated(), torch.zeros(512, 256), mode="forward_backward"), H100)
    backward = [call for call in read.graph.calls if call.name.startswith("backward")]
    forward = len(read.graph.calls) - len(backward)
    assert backward and any(place < forward for call in backward for place in call.inputs)
    products = [one for one in read.kernels if one.operators and one.operators[0].name == "linear"]
    assert len(products) == 2  # the input learns nothing: one of the two gradients is never made


def test_a_table_is_read_where_it_is_looked_up():
    table = nn.Sequential(nn.Embedding(50_000, 64), nn.LayerNorm(64))
    (kernel,) = read_inductor(Workload(table, torch.zeros(128, dtype=torch.long)), H100).kernels
    assert kernel.read_bytes >= 50_000 * 64 * 4  # as Inductor counts it
    assert 2 * 128 * 64 * 4 < kernel.moved_bytes < 3 * 128 * 64 * 4


def test_cuda_graphs_leave_no_dispatch():
    workload = Workload(Gated(), torch.zeros(512, 256))
    ask = {"device": "h100", "runtime": "torch-compile", "progress": False}
    alone, replayed = (cdmpp.predict_network(workload, cuda_graphs=graphs, **ask) for graphs in (False, True))
    assert replayed.overhead_s == pytest.approx(0, abs=1e-12) and alone.overhead_s > 0
    assert replayed.latency_s < alone.latency_s


@pytest.mark.parametrize(
    ("module", "others", "told"),
    [
        (Branches(), {}, r"not one graph.*test_read\.py.*line \d+"),
        (Selects(), {}, "depends on the values"),
        (Gated(), {"precision": "float8"}, "float8-tensorwise with runtime torch-compile"),
        (Gated(), {"boxes": 3}, "boxes 3 with runtime torch-compile"),
        (Gated(), {"moe_imbalance": 2.0}, "moe_imbalance 2 with runtime torch-compile"),
    ],
)
def test_what_is_not_answered_is_refused_by_name(module, others, told):
    with pytest.raises(UnsupportedNetworkError, match=told):
        read_inductor(Workload(module, torch.zeros(4, 256), **others), H100)


def test_cuda_graphs_of_other_runtimes_are_refused():
    with pytest.raises(UsageError, match="cuda_graphs is of runtime torch-compile"):
        runtime_of("torch", cuda_graphs=True)


@pytest.mark.parametrize(
    ("reduction", "written", "name"), [(1, 4096, "copy"), (128, 4096, "layer_norm"), (128, 32, "mean")]
)
def test_a_fused_kernel_is_answered_as_what_moves_as_much(reduction, written, name):
    kernel = Kernel("op0", (), (), 4096, written, 4096 + written, 1024, reduction)
    operator = operator_for(kernel)
    assert operator.name == name
    assert operator.io_bytes == pytest.approx(4096 + written, rel=0.02)

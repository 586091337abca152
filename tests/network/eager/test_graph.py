"""A network as PyTorch's own calls: who reads whom, what lies in memory, and that TVM is not asked."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from cdmpp.errors import CdmppError
from cdmpp.network.eager.graph import eager_graph_of
from cdmpp.network.eager.read import read_run
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.programs.exported import export


class Residual(nn.Module):
    """Two paths that meet, and a sine that nobody measured."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.second(torch.relu(self.first(x))) + x).view(2, 32)


def test_calls_read_what_the_module_says():
    network = read_torch(Workload(Residual(), torch.randn(8, 8)))
    graph, operators, stand_ins, parameters, weights, *_ = eager_graph_of(
        export(network.model, network.example), network.name
    )
    assert [str(operators[call.task_id]) for call in graph.calls] == [
        "linear 8x8x8",
        "relu 8x8",
        "linear 8x8x8",
        "add 8x8",
        "relu 8x8",
    ]
    assert [call.inputs for call in graph.calls] == [(), (0,), (1,), (2,), (3,)]
    assert [sum(size for _, size in call.resident) for call in graph.calls] == [256 + 256 + 32, 0, 256 + 32, 256, 0]
    assert (graph.weight_bytes, graph.input_bytes, graph.results, graph.views) == (2 * 288, 256, (4,), 1)
    assert stand_ins == {4: "sin"}
    assert sorted(graph.counts.values()) == [1, 2, 2]  # the relu and its stand-in are one program


def test_no_tvm_is_needed():
    code = (
        "import sys; sys.modules['tvm'] = None\n"
        "from cdmpp.network.source.torch_network import read_torch\n"
        "from cdmpp.network.workload import Workload\n"
        "from cdmpp.network.eager.graph import eager_graph_of\n"
        "from cdmpp.programs.exported import export\n"
        "network = read_torch(Workload('torchvision:squeezenet1_1'))\n"
        "graph, operators, *_ = eager_graph_of(export(network.model, network.example), network.name)\n"
        "print(sum(o.name == 'conv2d' for o in operators.values()) > 5, len(graph.calls) > 60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_what_is_no_torch_model_is_refused():
    with pytest.raises(CdmppError, match="there is no file model.onnx"):
        read_torch(Workload("model.onnx"))


def test_large_batches_are_read_without_memory_for_their_inputs():
    """60 GB of images: the calls are those of one image. Beyond what an operator can be it is refused."""
    small, large = (read_run(Workload("torchvision:resnet18", batch=batch)).graph for batch in (1, 100_000))
    assert large.input_bytes == 100_000 * small.input_bytes == 100_000 * 3 * 224 * 224 * 4
    assert large.weight_bytes == small.weight_bytes and len(large.calls) == len(small.calls)
    with pytest.raises(CdmppError, match="a whole number from 1 to 1099511627776"):
        read_run(Workload("torchvision:resnet18", batch=10**9))


def test_results_of_a_run_with_its_backward_pass_live_as_long_as_autograd_keeps_them():
    """What a batch norm returns is read by nothing behind its ReLU: it does not live into the backward pass."""
    network = nn.Sequential(*(one for _ in range(4) for one in (nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())))
    x, held = torch.randn(2, 8, 24, 24), dict[int, torch.UntypedStorage]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(x)
    given = {one.untyped_storage()._cdata for one in (x, *network.parameters())}
    saved = sum(storage.nbytes() for number, storage in held.items() if number not in given)
    gradients = sum(one.nbytes for one in network.parameters())
    alive = read_run(Workload(network, x, mode="forward_backward")).alive_bytes
    assert alive is not None and saved <= alive <= saved + gradients + 2 * 2 * 8 * 22 * 22 * 4

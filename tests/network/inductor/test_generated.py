"""Kernels and bytes beside those of Inductor's own code generation, which runs to its end without a GPU."""

import re

import pytest
import torch
from torch import nn

from cdmpp import devices
from cdmpp.network.inductor.kernel import kernels_of
from cdmpp.network.inductor.library import Attending
from cdmpp.network.inductor.lowered import lower
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload

DEVICE = devices.get("h100")
_CALLS = r"triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.\w+\.\w+\.\w+|aten\.\w+(?:\.\w+)*"
_LAUNCH = re.compile(rf"^\s+(?:buf\d+ = )?(?:{_CALLS})\(", re.M)


class Norms(nn.Module):
    """Reductions between pointwise operators, a gate, and a sum of columns."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x):
        y = self.norm(torch.relu(self.inner(x)))
        return y * torch.sigmoid(y) + x, y.sum(0), torch.softmax(y, -1).amax(-1)


NETWORKS = {
    "norms": ("inference", (Norms(), torch.zeros(32, 64))),
    "norms trained": ("forward_backward", (Norms(), torch.zeros(32, 64))),
    "bert": ("inference", ("bert_tiny",)),
    "bert trained": ("forward_backward", ("bert_tiny",)),
    "gpt2": ("inference", ("gpt2",)),
    "resnet18": ("inference", ("torchvision:resnet18",)),
    "resnet18 trained": ("forward_backward", ("torchvision:resnet18",)),
    "mobilenet": ("inference", ("torchvision:mobilenet_v3_small",)),
    "squeezenet": ("inference", ("torchvision:squeezenet1_1",)),
    "vit": ("inference", ("torchvision:vit_b_16",)),
    "shufflenet": ("inference", ("torchvision:shufflenet_v2_x0_5",)),
    "t5": ("inference", ("hf:t5-small",)),
    "convnext": ("inference", ("torchvision:convnext_tiny",)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name.startswith("norms") else pytest.mark.slow) for name in NETWORKS]
)
def test_kernels_and_bytes_are_those_of_inductor(name, monkeypatch):
    from torch._inductor.codegen.triton import TritonKernel

    mode, given = NETWORKS[name]
    workload = Workload(*given, mode=mode)
    network = read_torch(workload, needs_values=False)
    counted = []
    count = TritonKernel.codegen_kernel
    monkeypatch.setattr(
        TritonKernel, "codegen_kernel",
        lambda self, *args, **more: (counted.append(self.estimate_kernel_num_bytes()), count(self, *args, **more))[1],
    )  # fmt: skip
    ours, launches, total = [], 0, 0

    def seen(graph, is_backward, nodes):
        nonlocal launches, total
        ours.extend(kernels_of(graph, Attending(DEVICE.architecture, "auto")))
        total += graph.count_bytes()[0]
        graph.scheduler.codegen()
        text = graph.wrapper_code.generate(graph.is_inference)[0].value
        launches += len(_LAUNCH.findall(text[text.index("def call(") :]))

    model = network.model.train(mode != "inference")
    lower(name, model, network.example, mode != "inference", DEVICE, seen)
    launched = [kernel for kernel in ours if kernel.launches]
    fused = [kernel for kernel in launched if kernel.is_fused]
    assert len(launched) == launches
    assert _moved(launched) == total
    assert len(fused) == len(counted)
    # The generator counts parts of concatenations, and what is written in place, again: up to a sixth more.
    assert sum(kernel.moved_bytes for kernel in fused) == pytest.approx(sum(counted), rel=0.2)


def _moved(kernels):
    return sum(one.read_bytes + one.written_bytes for one in kernels)

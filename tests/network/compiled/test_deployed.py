"""Weights are folded once: the network that is run calls what its graph says, and computes what torch does."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from cdmpp.network.compiled.deployed import FOLD, split_known  # noqa: E402
from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source.read import read_network  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402


class Small(torch.nn.Module):
    """A table of constants that no weight enters, made by several kernels, beside two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)

    def forward(self, x):
        table = torch.zeros(3, 4)
        table[1:, :] = 2.0
        return self.second(torch.relu(self.first(x))) + table * 3.0


def called(module, name: str) -> list[str]:
    import tvm

    values = [binding.value for block in module[name].body.blocks for binding in block.bindings]
    kernels = [v for v in values if isinstance(v, tvm.ir.Call) and getattr(v.op, "name", "") == "relax.call_tir"]
    return [kernel.args[0].name_hint for kernel in kernels]


def test_what_runs_is_what_the_graph_says_and_the_numbers_are_torchs():
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    torch.manual_seed(0)
    model, x = Small().eval(), torch.randn(3, 6)
    source = read_network(Workload(model, x))
    module, told = split_known(source.module)
    graph = graph_of(source.module, "small")
    assert called(module, "main") == [call.name.rpartition("#")[0] for call in graph.calls]
    assert len(called(module, FOLD)) == graph.folded
    weights = {f"p_{name.replace('.', '_')}": value.detach().numpy() for name, value in model.named_parameters()}
    target = tvm.target.Target({"kind": "llvm"})
    with target:
        passes = [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
        built = tvm.compile(tvm.transform.Sequential(passes)(module), target=target, relax_pipeline=None)
    machine = relax.VirtualMachine(built, tvm.cpu())
    folded = machine[FOLD](*(tvm.runtime.tensor(weights[name]) for name, _ in told))
    result = machine["main"](tvm.runtime.tensor(x.numpy()), *folded)
    result = result if hasattr(result, "numpy") else result[0]
    np.testing.assert_allclose(result.numpy(), model(x).detach().numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_t", "llama_small", "gpt2"])
def test_masks_and_tables_of_real_networks_are_folded(name):
    source = read_network(Workload(name))
    calls = [call.name.rpartition("#")[0] for call in graph_of(source.module, name).calls]
    assert called(split_known(source.module)[0], "main") == calls

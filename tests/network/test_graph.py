"""The graph of a network: what runs, what it reads, what is folded away, and what cannot be predicted is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.network.liveness import peak_activation_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.programs.models import build_model  # noqa: E402
from cdmpp.programs.networks import tasks_of_module, to_relax  # noqa: E402
from cdmpp.programs.zoo import network_of, read_zoo  # noqa: E402


class Diamond(torch.nn.Module):
    """Two products of the input, by different weights, meet in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(16, 32, bias=False)

    def forward(self, x):
        return self.left(x) @ self.right(x).T


def graph(module, *inputs):
    return graph_of(to_relax(module.eval(), inputs), "mine")


def test_edges_are_by_identity_and_weights_are_folded():
    found = graph(Diamond(), torch.randn(8, 16))
    first, second, *rest = found.calls
    assert first.inputs == second.inputs == () and first.task_id == second.task_id
    read = {source for call in rest for source in call.inputs}
    assert read >= {0, 1} and rest[-1].output_bytes == 8 * 8 * 4
    assert found.folded == 2, "each weight is transposed once, when the network is deployed"
    assert found.counts[first.task_id] == 2 and set(found.counts) == set(found.tasks)
    assert found.weight_bytes == 2 * 16 * 32 * 4 and found.input_bytes == 8 * 16 * 4
    assert first.output_bytes == 8 * 32 * 4
    assert found.results == (len(found.calls) - 1,)


@pytest.mark.parametrize("name", ["bert_tiny", "resnet18"])
def test_all_that_runs_is_in_the_graph(name):
    module = to_relax(*build_model(network_of(read_zoo(), name)))
    found = graph_of(module, name)
    tasks = {task.task_id: task for task in tasks_of_module(module, name)}
    assert set(found.tasks) <= set(tasks)
    assert all(found.counts[key] <= tasks[key].networks[name] for key in found.counts)
    assert len(found.calls) + found.folded + found.views == sum(task.networks[name] for task in tasks.values())
    assert all(source < place for place, call in enumerate(found.calls) for source in call.inputs)
    reached = set(found.results)
    for place in reversed(range(len(found.calls))):
        if place in reached:
            reached |= set(found.calls[place].inputs)
    assert len(reached) == len(found.calls), "what nothing reads was left in"


def test_an_operator_without_a_program_is_named():
    class Sums(torch.nn.Module):
        def forward(self, x):
            return torch.cumsum(x, dim=1)

    with pytest.raises(CdmppError, match=r"mine: the operator relax\.cumsum .* has no tensor program"):
        graph(Sums(), torch.randn(4, 5))


def test_a_symbolic_shape_is_named():
    from torch.export import Dim

    class Doubles(torch.nn.Module):
        def forward(self, x):
            return x + x

    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    exported = torch.export.export(Doubles(), (torch.randn(4, 5),), dynamic_shapes={"x": {0: Dim("n", max=8)}})
    module = relax.transform.LegalizeOps()(from_exported_program(exported, keep_params_as_input=True))
    assert isinstance(module, tvm.IRModule)
    with pytest.raises(CdmppError, match=r"mine: add has a symbolic shape: export the model with fixed sizes"):
        graph_of(module, "mine")


def test_results_live_until_their_last_reader():
    told = [((), 10), ((0,), 4), ((1,), 7), ((0, 2), 1)]
    calls = tuple(Call(f"c{i}", "t", inputs, size) for i, (inputs, size) in enumerate(told))
    made = NetworkGraph("n", calls, {}, 0, 0, 0, (3,))
    assert peak_activation_bytes(made, [0, 1, 2, 3]) == 10 + 4 + 7
    assert peak_activation_bytes(replace(made, results=(1, 3)), [0, 1, 2, 3]) == 10 + 4 + 7 + 1
    chain = NetworkGraph("n", (calls[0], calls[1], replace(calls[2], inputs=(1,))), {}, 0, 0, 0, (2,))
    assert peak_activation_bytes(chain, [0, 1, 2]) == 14

"""A predicted step on several ranks: one rank is the prediction, modules are blocks, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.from_prediction import ROOT, graph_of, modules_of
from cdmpp.steps.strategy_replay import replay_strategy
from tests.steps.toy_graph import wires

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm


class Blocks(torch.nn.Module):
    """Two numbered blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.body = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        x = self.stem(x)
        for block in self.body:
            x = torch.tanh(block(x))
        return self.head(x)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDMPP_CACHE", str(tmp_path_factory.mktemp("ranks") / "cache"))
        workload = cdmpp.Workload(Blocks(), (torch.randn(4, 8),), loss="mse", optimizer="sgd")
        step = cdmpp.read_step(workload, fallback=False)
        yield cdmpp.predict_step(step, device="epyc-genoa", schedule="untuned", progress=False)


@pytest.mark.parametrize("name", [kind.name for kind in STRATEGIES if not kind.divides_model])
def test_one_rank_is_the_prediction(found, name):
    assert cdmpp.replay_step(found, ranks=1, strategy=name).iteration_s == pytest.approx(found.latency_s)


def test_the_graph_is_that_of_the_step(found):
    (rank,) = graph_of(found).ranks
    assert [one.phase for one in rank.ops] == [call.phase for call in found.step.calls]
    assert rank.gradient_bytes == found.step.memory.gradient_bytes
    assert [one.name for one in rank.gradients] == [one.name for one in found.step.parameters]
    assert {one.stream for one in rank.ops} == {"compute"}


def test_blocks_are_modules_and_the_rest_is_the_root(found):
    modules = {module.name: module for module in modules_of(found.step)}
    assert list(modules) == [ROOT, "body.0", "body.1"]
    assert modules[ROOT].is_kept and not modules["body.0"].is_kept
    assert modules["body.0"].bytes == 4 * (16 * 16 + 16)
    assert sum(module.bytes for module in modules.values()) == found.step.memory.gradient_bytes
    assert modules["body.0"].forward[1] < modules["body.1"].forward[0]
    assert modules["body.1"].backward[1] < modules["body.0"].backward[1]
    ready = {one.name: one.ready for one in found.step.parameters}
    assert modules["body.1"].backward[1] == max(ready["body.1.weight"], ready["body.1.bias"])


def test_two_engines_are_two_streams(found):
    from cdmpp import devices
    from cdmpp.devices.launch_overheads import LaunchOverheads

    device = devices.get("epyc-genoa")
    overheads = LaunchOverheads(
        call_s=1e-6, run_s=1e-6, classes={"matrix": ("dense", "matmul"), "vector": ("elementwise",)}
    )
    told = cdmpp.predict_step(
        found.step, device=replace(device, launch_overheads=overheads), model="cpus", schedule="untuned", progress=False
    )
    graph = graph_of(told)
    assert {one.stream for one in graph.ranks[0].ops} == {"compute matrix", "compute vector"}
    assert replay_strategy(graph, DDP(), wires(1)).iteration_s == pytest.approx(told.latency_s)


def test_a_network_goes_all_the_way(found):
    made = cdmpp.replay_step(found, ranks=2, cluster="cpus-ethernet")
    assert made.ranks == 2 and made.backend == "gloo" and made.iteration_s > found.latency_s
    assert not any("no kernel of a backward pass" in warning for warning in made.warnings)  # `epyc-genoa` knows some
    assert "cluster cpus-ethernet has xeon-icelake, and kernels are those of epyc-genoa" in made.warnings


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranks": 0}, "ranks is 0: expected a whole number from 1 to 65536"),
        ({"ranks": 2}, "2 ranks, and no way between them: name a cluster or a link"),
        ({"ranks": 2, "cluster": "dgx-a100", "link": "nvlink3"}, "leave one out"),
        ({"ranks": 2, "cluster": "moon"}, "unknown cluster 'moon'"),
        ({"ranks": 5, "cluster": "cpus-ethernet"}, "5 ranks do not fit on cluster cpus-ethernet: it has 4 devices"),
        ({"ranks": 2, "link": "ethernet-25g", "strategy": "zeros"}, "unknown parallel strategy 'zeros'"),
        ({"ranks": 2, "link": "ethernet-25g", "granularity": "all"}, "unknown granularity 'all'"),
        ({"ranks": 2, "link": "ethernet-25g", "global_batch": 2**20}, "predict the step at 524288 examples"),
    ],
)
def test_what_cannot_be_asked_is_said(found, options, told):
    with pytest.raises(CdmppError, match=told):
        cdmpp.replay_step(found, **options)

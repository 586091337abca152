"""A predicted step gets a plan: memory is that of the step, blocks are modules, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cdmpp
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.memory import memory_warning
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.report.step import step_report
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.transforms.recompute import can_recompute

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm


class Blocks(torch.nn.Module):
    """Three numbered blocks with something wide inside, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.body = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.Tanh(), torch.nn.Linear(256, 16)) for _ in range(3)
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.body:
            x = torch.tanh(block(x))
        return self.head(x)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDMPP_CACHE", str(tmp_path_factory.mktemp("plans") / "cache"))
        workload = cdmpp.Workload(Blocks(), (torch.randn(512, 8),), loss="mse", optimizer="sgd")
        step = cdmpp.read_step(workload, fallback=False)
        yield cdmpp.predict_step(step, device="epyc-genoa", schedule="untuned", progress=False)


def test_memory_of_one_rank_is_that_of_the_step(found):
    memory = Memory(found.step.memory, graph_of(found).ranks[0])
    assert memory.live().with_gradients == found.step.memory.live_bytes
    assert memory.peak_bytes(Plan()) == found.step.peak_bytes
    assert [module.name for module in can_recompute(memory.rank)] == ["body.0", "body.1", "body.2"]
    assert memory.live(("body.0", "body.1", "body.2")).with_gradients < 0.7 * memory.live().with_gradients


def test_a_limit_recomputes_blocks(found):
    free = cdmpp.optimize_step(found, ranks=2, link="ethernet-25g")
    assert free.cost.batch_s <= free.default_cost.batch_s
    assert free.plan.recompute == ()
    memory = Memory(found.step.memory, graph_of(found).ranks[0])
    limit = memory.peak_bytes(plan_on(2, DDP(gradient_as_bucket_view=True), recompute=("body.0",)))
    made = cdmpp.optimize_step(found, ranks=2, link="ethernet-25g", memory_limit_bytes=limit)
    assert len(made.plan.recompute) == 1 and made.peak_bytes <= limit < made.default_cost.peak_bytes
    assert any("checkpoint" in line for line in made.settings)
    assert set(found.prediction.warnings) < set(made.warnings)


def test_a_rank_that_holds_too_much_is_named_and_not_the_undivided_device(found, monkeypatch):
    """The whole step does not fit into so much; a rank of two that shard it does, and one that does not is named."""
    large = replace(found.step.memory, parameter_bytes=2**28, gradient_bytes=2**28, state_bytes=2**28)
    found = replace(found, step=replace(found.step, memory=large))
    whole = found.step.peak_bytes
    half = cdmpp.replay_step(found, ranks=2, link="ethernet-25g", strategy="fsdp").heaviest.peak_bytes
    for limit, told in ((half, ()), (half - 1, ("rank 0",))):
        with monkeypatch.context() as patch:
            patch.setattr("cdmpp.network.memory.MOST_HOST_GB", limit / 2**30)
            full = memory_warning(devices.get("epyc-genoa"), whole)
            assert full
            step = replace(found, prediction=replace(found.prediction, warnings=(full, "another")))
            made = cdmpp.replay_step(step, ranks=2, link="ethernet-25g", strategy="fsdp")
            assert full not in made.warnings and "another" in made.warnings
            assert [one.split(" holds ")[0] for one in made.warnings if "WARNING" in one] == [
                f"WARNING: {w}" for w in told
            ]
            assert full in step_report(step).warnings
            assert step_report(step, is_part=True).warnings == ("another",)


def test_a_plan_is_replayed_with_all_that_it_sets(found):
    plan = plan_on(2, DDP((2**20,)), recompute=("body.1",), gradient_accumulation_steps=2)
    replayed = cdmpp.replay_step(found, plan=plan, link="ethernet-25g")
    searched = cdmpp.optimize_step(found, plan=plan, link="ethernet-25g")
    assert replayed.iteration_s == pytest.approx(searched.default_iteration_s)
    assert replayed.heaviest.peak_bytes == searched.default_cost.peak_bytes < found.step.peak_bytes + 2**20
    assert replayed.heaviest.rank == 0 and replayed.to_dict()["peak_bytes"] == replayed.heaviest.peak_bytes
    assert replayed.iteration_s > 1.5 * cdmpp.replay_step(found, ranks=2, link="ethernet-25g").iteration_s
    by_form = cdmpp.optimize_step(found, plan=plan, link="ethernet-25g", method="closed_form")
    assert by_form.default_iteration_s <= replayed.no_overlap_s * 1.001


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranks": 2, "link": "ethernet-25g", "memory_limit_bytes": 1000}, "no plan of ddp needs at most 1.00 kB"),
        ({"ranks": 2, "link": "ethernet-25g", "strategy": "zeros"}, "unknown parallel strategy 'zeros'"),
        ({"ranks": 2}, "name a cluster or a link"),
        ({"ranks": 2, "link": "ethernet-25g", "most_accumulation_steps": 0}, "most_accumulation_steps is 0"),
        ({"link": "ethernet-25g"}, "the number of ranks is not given"),
        ({"ranks": 2, "link": "ethernet-25g", "plan": plan_on(4)}, "the plan is for 4 ranks, and 2 are asked for"),
        ({"ranks": 2, "link": "ethernet-25g", "plan": plan_on(2, recompute=("body.9",))}, "names 'body.9'"),
    ],
)
def test_what_cannot_be_asked_is_said(found, options, told):
    with pytest.raises(CdmppError, match=told):
        cdmpp.optimize_step(found, **options)

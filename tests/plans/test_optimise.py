"""A predicted step gets a plan: memory is that of the step, blocks are units, and what cannot be is said."""

from __future__ import annotations

import pytest

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.transforms.recompute import can_recompute
from tests.own_cache import new_cache

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
        patch.setenv("CDMPP_CACHE", str(new_cache(tmp_path_factory.mktemp("plans") / "cache")))
        step = cdmpp.training_step(Blocks(), (torch.randn(512, 8),), loss="mse", optimizer="sgd", fallback=False)
        yield cdmpp.predict_step(step, device="epyc-genoa", schedule="untuned", progress=False)


def test_memory_of_one_rank_is_that_of_the_step(found):
    memory = Memory(found.step.memory, graph_of(found).ranks[0])
    assert memory.live_bytes() == found.step.memory.live_bytes
    assert memory.peak_bytes(Plan(), 1) == found.step.peak_bytes
    assert [module.name for module in can_recompute(memory.rank)] == ["body.0", "body.1", "body.2"]
    assert memory.live_bytes(("body.0", "body.1", "body.2")) < 0.7 * memory.live_bytes()


def test_a_limit_recomputes_blocks(found):
    free = cdmpp.optimise_step(found, ranks=2, link="nvlink3")
    assert free.worth.batch_s <= free.default_worth.batch_s
    assert free.plan.recomputed == ()
    memory = Memory(found.step.memory, graph_of(found).ranks[0])
    limit = memory.peak_bytes(Plan(bucket_view=True, recomputed=("body.0",)), 2)
    made = cdmpp.optimise_step(found, ranks=2, link="nvlink3", memory_limit_bytes=limit)
    assert len(made.plan.recomputed) == 1 and made.peak_bytes <= limit < made.default_worth.peak_bytes
    assert any("checkpoint" in line for line in made.settings)
    assert set(found.prediction.warnings) < set(made.flags)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranks": 2, "link": "nvlink3", "memory_limit_bytes": 1000}, "no plan of ddp holds at most 1.00 kB"),
        ({"ranks": 2, "link": "nvlink3", "scheme": "zero"}, "unknown scheme 'zero'"),
        ({"ranks": 2}, "name a cluster or a link"),
        ({"ranks": 2, "link": "nvlink3", "most_micro_steps": 0}, "0 micro-steps"),
        ({"ranks": 2, "link": "nvlink3", "device": "a100"}, "leave out device"),
    ],
)
def test_what_cannot_be_asked_is_said(found, options, told):
    with pytest.raises(CdmppError, match=told):
        cdmpp.optimise_step(found, **options)

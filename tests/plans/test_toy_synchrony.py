"""A synchrony is one class: once registered it is planned, replayed, saved and read back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cdmpp.errors import UsageError
from cdmpp.plans import plan_on, read_plan, save_plan
from cdmpp.platform.limits import Limits
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.policies import SYNCHRONIES, synchrony_of
from tests.plans.toy_job import MIB, evaluator, layers


@dataclass(frozen=True)
class Stale(Synchrony):
    """Updates with the gradients of an earlier step, so that exchanges overlap with the passes of the next."""

    LIMITS = {"steps": Limits(1, 100, "steps")}
    name = "stale"
    title = "updates use gradients of earlier steps"

    steps: int = 1

    def awaited_step(self, step):
        return step - self.steps


@pytest.fixture(autouse=True)
def toy():
    SYNCHRONIES.register(Stale)
    yield
    SYNCHRONIES.remove("stale")


@pytest.mark.parametrize("strategy", ["ddp", "ps"])
def test_exchanges_hide_behind_the_next_step(strategy):
    """By hand: 7 ms of computing, and the 4 MiB of the only layer that leave at its end on a wire of 1 ns a byte."""
    asked = evaluator(layers((4 * MIB,), (2e-3,)), beta_s=1e-9, default=plan_on(2, strategy))
    waiting_s = asked.evaluate(asked.default).iteration_s
    stale = replace(asked.default, synchrony=Stale())
    assert waiting_s > 7e-3 + 4 * MIB * 1e-9
    assert asked.evaluate(stale).iteration_s == pytest.approx(7e-3)
    assert stale.changes(asked.default) == ("updates use gradients of earlier steps",)


@pytest.mark.parametrize("name", ["ssp:1", "async"])
def test_a_plan_takes_a_synchrony_of_steps(name):
    asked = evaluator(layers((4 * MIB,), (2e-3,)), beta_s=1e-9, default=plan_on(2, "ps"))
    assert asked.evaluate(replace(asked.default, synchrony=synchrony_of(name))).iteration_s == pytest.approx(7e-3)


@pytest.mark.parametrize("name", ["local", "diloco", "backup", "adacomm", "adsp", "r2sp"])
def test_a_plan_refuses_a_synchrony_that_leaves_out_exchanges(name):
    asked = evaluator(layers((4 * MIB,), (2e-3,)), beta_s=1e-9, default=plan_on(2, "ps"))
    with pytest.raises(UsageError, match=f"synchrony {name} decides while a job runs when to exchange"):
        asked.evaluate(replace(asked.default, synchrony=synchrony_of(name)))


def test_it_goes_to_a_file_and_back(tmp_path):
    plan = plan_on(4, synchrony=Stale(steps=3))
    save_plan(plan, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml") == plan

"""A strategy is one class: once registered it is planned, replayed, searched over, saved, read back and shown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest

from cdmpp.cli.command import main
from cdmpp.errors import InfeasiblePlanError
from cdmpp.plans import Plan, plan_on, read_plan, save_plan, search
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.platform.limits import Limits
from cdmpp.report.plan import plan_report
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.strategy import Strategy, flag
from tests.plans.toy_job import MIB, evaluator, layers, memory

_BITS = Limits(1, 32, "bits")


@dataclass(frozen=True)
class Quantized(Strategy):
    """One all-reduce of all gradients after the backward pass, each number in fewer bits."""

    LIMITS = {"bits": _BITS}
    name = "quantized"
    title = "gradients of few bits"

    bits: int = field(default=32, metadata=flag("--bits", _BITS, "bits of a gradient of quantized (default 32)"))

    def exchanges(self, graph, sizes=None):
        graph.check_alike()
        size = sum(one.bytes for one in graph.ranks[0].gradients) * self.bits // 32
        after = {rank.rank: max(one.ready_after for one in rank.gradients) for rank in graph.ranks}
        return (Exchange("all_reduce", size, after, name="all gradients"),)

    def proposals(self, graph):
        yield "bits", "communication", [replace(self, bits=bits) for bits in (16, 8)]

    def rank_bytes(self, held, modules, sizes, batches=1):
        own = super().rank_bytes(held, modules, sizes, batches)
        return replace(own, bucket_bytes=held.gradient_bytes * self.bits // 32)

    def memory_savers(self, ranks):
        if self.bits > 8:
            yield "fewer bits", replace(self, bits=8)

    def torch_lines(self, axes="", optimizer=""):
        return (f"model.register_comm_hook(None, quantize_to_{self.bits}_bits)",)


@pytest.fixture(autouse=True)
def toy():
    STRATEGIES.register(Quantized)
    yield
    STRATEGIES.remove("quantized")


WORK = layers((8 * MIB,) * 4, (1e-3,) * 4)


def test_it_is_replayed_and_searched_over():
    found = search(evaluator(WORK, beta_s=1e-9, default=plan_on(2, "quantized")))
    assert found.plan == plan_on(2, Quantized(bits=8))
    assert found.default_iteration_s - found.iteration_s == pytest.approx(0.75 * 32 * MIB * 1e-9, rel=0.01)
    assert found.settings == ("model.register_comm_hook(None, quantize_to_8_bits)",)
    assert "bits 8" in plan_report(found).title


def test_many_ranks_by_closed_form_and_by_replay():
    asked = evaluator(WORK, ranks=6, default=plan_on(6, "quantized"))
    replayed_s = asked.evaluate(asked.default).iteration_s
    closed = replace(asked, method="closed_form", _costs={}).evaluate(
        replace(asked.default, strategy=Quantized(overlap=False))
    )
    assert closed.iteration_s == pytest.approx(replayed_s)  # nothing is hidden by either


def test_it_is_fitted_into_memory():
    held = memory(WORK, [MIB] * 4)
    least = held.peak_bytes(plan_on(2, Quantized(bits=8)))
    found = search(evaluator(WORK, default=plan_on(2, "quantized"), held=held), least)
    assert found.plan.strategy == Quantized(bits=8) and found.peak_bytes == least
    with pytest.raises(InfeasiblePlanError, match="no plan of quantized needs at most"):
        search(evaluator(WORK, default=plan_on(2, "quantized"), held=held), MIB)


def test_it_goes_to_a_file_and_back(tmp_path):
    plan: Plan = plan_on(4, Quantized(bits=4), update="fused")
    save_plan(plan, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml") == plan


def test_the_command_knows_it(capsys, tmp_path):
    step = ["step", "mlp", "--runtime", "torch", "--device", "h100", "--ranks", "4", "--link", "pcie4"]
    saved = str(tmp_path / "plan.yaml")
    assert main([*step, "--strategy", "quantized", "--bits", "8", "--save-plan", saved]) == 0
    assert "quantized over pcie4" in capsys.readouterr().out
    assert read_plan(tmp_path / "plan.yaml").strategy == Quantized(bits=8)
    assert main([*step, "--plan", saved, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"]["strategy"] == "quantized"
    assert main([*step, "--strategy", "ddp", "--bits", "8"]) == 2
    assert "--bits goes with --strategy quantized, given ddp" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["step", "--help"])
    assert "quantized (gradients of few bits)" in " ".join(capsys.readouterr().out.split())

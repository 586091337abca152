"""A training step as a graph: phases, readiness, memory, refusals, the ratio that stands in, and its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import PHASES
from cdmpp.report.step import step_report
from cdmpp.report.text import text_of

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from cdmpp.programs.training import joint as joint_module  # noqa: E402
from cdmpp.programs.training.joint import joint_graph  # noqa: E402
from cdmpp.programs.training.loss import with_loss  # noqa: E402
from cdmpp.programs.training.lowering import fuse, lower_unfused, step_to_relax  # noqa: E402
from cdmpp.programs.training.optimizers import OPTIMIZERS, optimizer_of  # noqa: E402
from tests.network.training_networks import Depthwise, Perceptron, small  # noqa: E402

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def perceptron():
    model, example = small("perceptron")
    return cdmpp.read_step(cdmpp.Workload(model, example, loss="mse"), fallback=False)


def test_phases_follow_each_other(perceptron):
    places = [PHASES.index(call.phase) for call in perceptron.calls]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}
    for place, call in enumerate(perceptron.calls):
        assert all(source < place for source in call.call.inputs)


def test_gradients_are_ready_in_the_reverse_order_of_the_layers(perceptron):
    layers = list(dict.fromkeys(name.split(".")[0] for name in perceptron.ready_order))
    assert layers == ["third", "second", "first"]
    assert len(perceptron.ready_order) == len(perceptron.parameters) == 6
    assert all(perceptron.calls[one.ready].phase == "backward" for one in perceptron.parameters)


def test_sizes_of_a_perceptron(perceptron):
    weights = 4 * (8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4)
    memory = perceptron.memory
    assert (memory.parameter_bytes, memory.gradient_bytes, memory.state_bytes) == (weights, weights, 2 * weights)
    assert memory.input_bytes == 4 * (4 * 8 + 4 * 4)
    assert perceptron.saved_activation_bytes == 4 * (2 * 4 * 16 + 4 * 4)  # tanh twice, output
    held = memory.parameter_bytes + memory.state_bytes
    assert held < perceptron.peak_bytes < held + memory.gradient_bytes + 3 * perceptron.saved_activation_bytes
    assert perceptron.batch == 4


def test_fusion_mixes_no_phases():
    """As many operators of each phase before fusion as inside the kernels of that phase after it."""
    from tvm import relax

    from cdmpp.network.graph import graph_with_ends
    from cdmpp.network.training_phases import phases_of

    module, arguments = with_loss(small("depthwise")[0], small("depthwise")[1], "cross_entropy")
    joint = joint_graph(module, arguments)
    unfused = lower_unfused(step_to_relax(joint, optimizer_of("adam")))

    def counted(lowered, members):
        graph, ends = graph_with_ends(lowered, "depthwise")
        values = list(zip(joint.results, ends.results, strict=False))
        kept = [place for value, places in values if value.role != "gradient" for place in places]
        made = [place for value, places in values if value.role == "gradient" for place in places]
        counts = dict.fromkeys(PHASES, 0)
        for call, phase in zip(graph.calls, phases_of(graph, kept, made), strict=True):
            counts[phase] += members.get(call.name.partition("#")[0], 1)
        return counts

    grouped = relax.transform.FuseOps()(unfused)
    members = {
        variable.name_hint: sum(len(block.bindings) for block in function.body.blocks)
        for variable, function in grouped.functions_items()
        if isinstance(function, relax.Function) and variable.name_hint != "main"
    }
    whole = unfused.clone()
    whole["main"] = whole["main"].with_attr("num_input", len(whole["main"].params))
    fused = counted(fuse(unfused), members)
    plain = counted(whole, {})
    # Reshapes are views and no calls, but count where they were fused.
    assert all(fused[phase] >= plain[phase] for phase in PHASES)
    assert fused["update"] == plain["update"] > 0


def test_dropout_is_left_out_and_said():
    step = cdmpp.read_step(cdmpp.Workload(Depthwise(), (torch.randn(4, 4, 8, 8),), optimizer="sgd"), fallback=False)
    assert any("dropout is left out in 1 place" in flag for flag in step.warnings)


def test_a_module_is_left_as_it_was():
    model = Depthwise().train()
    model.body[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    cdmpp.read_step(cdmpp.Workload(model, (torch.randn(4, 4, 8, 8),), optimizer="sgd"), fallback=False)
    assert model.training and not model.body[1].training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(one.requires_grad and one.grad is None for one in model.parameters())


def test_a_parameter_that_the_loss_does_not_see_is_named():
    model = Perceptron()
    model.spare = torch.nn.Linear(2, 2)
    step = cdmpp.read_step(cdmpp.Workload(model, (torch.randn(4, 8),), loss="mse", optimizer="sgd"), fallback=False)
    assert "spare.weight" in " ".join(step.warnings)
    assert "spare.weight" not in step.ready_order


class Odd(torch.nn.Module):
    """An operator whose backward pass is not covered."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = torch.nn.ConvTranspose2d(3, 4, 2, 2)

    def forward(self, x):
        return self.widen(x).mean((2, 3))


def test_an_operator_that_is_not_covered_is_named_with_its_place():
    with pytest.raises(CdmppError, match=r"convolution_backward.* at .*widen"):
        cdmpp.read_step(Odd(), (torch.randn(2, 3, 4, 4),), fallback=False)


@pytest.fixture(scope="module")
def ratio():
    return cdmpp.read_step(cdmpp.Workload(Odd(), (torch.randn(2, 3, 4, 4),), optimizer="sgd"))


def test_a_ratio_stands_in_and_says_so(ratio):
    assert ratio.is_ratio
    assert "measured ratio" in ratio.warnings[0] and "convolution_backward" in ratio.warnings[0]
    counts = ratio.counts
    assert counts["forward"] == counts["backward"] > 0 and counts["update"] > 0
    assert set(ratio.ready_order) == {"widen.weight", "widen.bias"}


def test_another_torch_is_refused(monkeypatch):
    monkeypatch.setattr(joint_module, "TORCH", ((1, 0), (2, 0)))
    with pytest.raises(CdmppError, match=r"torch .* cannot export a backward pass .* from 1.0 to before 2.0"):
        cdmpp.read_step(cdmpp.Workload(*small("perceptron"), loss="mse"), fallback=False)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optimizer": "lion"}, "optimizer 'lion' is unknown: use sgd, adam, adamw, adafactor"),
        ({"loss": "hinge"}, "loss 'hinge' is unknown: use cross_entropy, mse, model"),
        ({"loss": lambda output: output}, "one number"),
        ({"loss": "model"}, "labels"),
    ],
)
def test_what_cannot_be_asked_is_said(options, told):
    with pytest.raises(CdmppError, match=told):
        cdmpp.read_step(cdmpp.Workload(*small("perceptron"), **options))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_updates_are_those_of_torch(name):
    """With states that are no longer zero."""
    optimizer, steps = optimizer_of(name), 3
    true = torch.nn.Parameter(torch.linspace(-1, 1, 12))
    made = {
        "sgd": lambda: torch.optim.SGD([true], lr=0.01, momentum=0.9),
        "adam": lambda: torch.optim.Adam([true], lr=0.01),
        "adamw": lambda: torch.optim.AdamW([true], lr=0.01),
    }[name]()
    own, states = true.detach().clone(), tuple(torch.zeros(12) for _ in range(optimizer.states))
    for step in range(1, steps + 1):
        gradient = torch.sin(torch.arange(12.0) + step)
        true.grad = gradient.clone()
        made.step()
        scalars = tuple(torch.tensor(one) for one in optimizer.scalars_of(0.01, step))
        own, *states = optimizer.update(own, gradient, states, scalars)
    assert torch.allclose(own, true, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDMPP_CACHE", str(tmp_path_factory.mktemp("steps") / "cache"))
        yield


def test_the_time_of_a_step(cache, ratio):
    found = cdmpp.predict_step(ratio, device="epyc-genoa", schedule="untuned", progress=False)
    phases = found.phase_s
    assert sum(phases.values()) == pytest.approx(found.latency_s)
    assert all(seconds > 0 for seconds in phases.values())
    assert all(phases["forward"] < at <= phases["forward"] + phases["backward"] for at in found.ready_s.values())
    told = text_of(step_report(found))
    assert all(f"\n{phase}" in told for phase in PHASES)
    assert found.to_dict()["is_ratio"] is True
    kernels = {one.task_id: one.latency_s for one in found.prediction.kernels}
    for key, (base, times) in ratio.scaled.items():
        assert kernels[key] == pytest.approx(times * kernels[base])
    longer = replace(ratio, scaled={key: (base, 2 * times) for key, (base, times) in ratio.scaled.items()})
    assert (
        cdmpp.predict_step(longer, device="epyc-genoa", schedule="untuned", progress=False).latency_s > found.latency_s
    )

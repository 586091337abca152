"""Who asks about a module goes on to train it: its modes and torch's random numbers are left as they were."""

from __future__ import annotations

import pytest

from cdmpp import devices
from cdmpp.errors import UsageError
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.inductor.runtime import InductorRuntime
from cdmpp.network.workload import Workload

torch = pytest.importorskip("torch")


class Frozen(torch.nn.Module):
    """In training mode, its norm is not: as one fine-tunes with the statistics of a trained model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1)
        self.train()
        self.norm.eval()

    def forward(self, x):
        return self.dropout(self.norm(self.linear(x)))


def modes(module):
    return [one.training for one in module.modules()]


RUNTIMES = [
    pytest.param(EagerRuntime, "h100"),
    pytest.param(InductorRuntime, "h100"),
    pytest.param(CompiledRuntime, "epyc-genoa", marks=pytest.mark.tvm),
]


@pytest.mark.parametrize("mode", ["inference", "forward_backward", "training_step"])
@pytest.mark.parametrize(("kind", "device"), RUNTIMES)
def test_a_module_keeps_its_modes(kind, device, mode, tmp_path, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    if kind is CompiledRuntime and mode == "forward_backward":
        return  # which it does not have
    module, x = Frozen(), torch.randn(4, 8)
    before, drawn = modes(module), torch.get_rng_state()
    kind().read(Workload(module, (x,), mode=mode), devices.get(device))
    assert modes(module) == before == [True, True, False, True]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_refused_module_keeps_its_modes():
    class Chooses(Frozen):
        def forward(self, x):
            return x if x.sum() > 0 else super().forward(x)

    module = Chooses()
    with pytest.raises(Exception, match="depends on"):
        EagerRuntime().read(Workload(module, (torch.randn(4, 8),)), devices.get("h100"))
    assert modes(module) == [True, True, False, True]


STATES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("mode", ["inference", "forward_backward", "training_step"])
def test_what_the_caller_switched_in_torch_changes_no_answer(state, mode):
    """Without gradients there would be no backward pass, and under autocast the model itself computes in bfloat16."""
    asked, runtime, device = Workload(Frozen(), (torch.randn(4, 8),), mode=mode), EagerRuntime(), devices.get("h100")

    def answer():
        read = runtime.read(asked, device)
        return read.graph, read.operators, runtime.price(read, device).kernels

    usual = answer()
    with STATES[state]():
        assert answer() == usual


def test_an_exported_program_is_refused():
    x = torch.randn(2, 8)
    module = torch.export.export(torch.nn.Linear(8, 8), (x,)).module()
    with pytest.raises(UsageError, match="give the module that it was made of"):
        EagerRuntime().read(Workload(module, (x,)), devices.get("h100"))


def test_a_step_is_the_same_after_a_run():
    """A frozen norm has no gradients of its statistics, and saves other tensors."""
    module, x, runtime = Frozen(), torch.randn(4, 8), EagerRuntime()
    asked, device = Workload(module, (x,), mode="training_step"), devices.get("h100")
    first = runtime.read(asked, device)
    runtime.read(Workload(module, (x,)), device)
    again = runtime.read(asked, device)
    assert again.graph == first.graph and again.operators == first.operators
    module.train()
    assert runtime.read(asked, device).operators != first.operators

"""Inputs without elements and networks without operators are refused; what torch.compile wraps is said."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload

NETS = """
import torch
from torch import nn

def no_elements():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)), (torch.randn(0, 256),)

def compiled():
    return torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU())), (torch.randn(4, 64),)

def nothing():
    return nn.Identity(), (torch.randn(2, 3),)

def grouped_norm():
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64)), (torch.randn(1, 3, 32, 32),)
"""
RUNTIMES = {
    "torch": ["--runtime", "torch", "--device", "h100"],
    "tvm": ["--device", "xeon-icelake", "--schedule", "untuned"],
}


@pytest.fixture
def nets(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


@pytest.mark.tvm
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("verb", "name", "told"),
    [
        ("network", "no_elements", "example input [0] has the shape (0, 256), without elements"),
        ("step", "no_elements", "example input [0] has the shape (0, 256), without elements"),
        ("network", "nothing", "this network runs no operator"),
        ("step", "nothing", "this network runs no operator"),
        ("compare", "nothing", "this network runs no operator"),
    ],
)
def test_nothing_is_refused_in_a_line(runtime, verb, name, told, nets, capsys):
    words = [word.replace("--device", "--devices") if verb == "compare" else word for word in RUNTIMES[runtime]]
    assert cli.main([verb, f"{nets}:{name}", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and "nets.py:" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("example", "where"),
    [
        (torch.randn(0, 8), ""),
        ((torch.randn(0, 8),), " [0]"),
        ((torch.randn(2, 8), torch.randn(2, 0)), " [1]"),
        ({"x": torch.randn(2, 8), "y": torch.randn(3, 0)}, " ['y']"),
        ({"x": torch.randn(2, 8), "y": [torch.randn(2, 8), torch.randn(0)]}, " ['y'][1]"),
    ],
)
def test_any_input_without_elements_is_named(example, where):
    with pytest.raises(CdmppError) as told:
        read_torch(Workload(nn.Bilinear(8, 8, 4), example))
    assert f"the example input{where} has the shape" in str(told.value)


def test_shapes_without_elements_are_refused_too():
    with pytest.raises(CdmppError, match=r"inputs\['input'\]\[[0-9]\] is 0: expected a whole number from 1"):
        read_torch(Workload(nn.Linear(8, 8), inputs={"input": (0, 8)}))


class Views(nn.Module):
    def forward(self, x):
        return x.view(3, 2).t()[:2]


def test_views_alone_are_no_operator():
    with pytest.raises(CdmppError, match="runs no operator; its 3 views move nothing"):
        read_run(Workload(Views(), torch.randn(2, 3)))


@pytest.mark.tvm
def test_what_reads_weights_alone_runs_before():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return torch.relu(self.weight)

    with pytest.raises(CdmppError, match="runs no operator when it is deployed; its 1 kernels read weights alone"):
        cdmpp.predict_network(Constant(), torch.randn(2, 3), device="xeon-icelake", schedule="untuned")


@torch.compile
def _doubled(x):
    return torch.relu(x) * 2


class Calls(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), _doubled if inner is None else inner

    def forward(self, x):
        return self.inner(self.first(x))


class Method(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    @torch.compile
    def forward(self, x):
        return self.first(x)


def in_place():
    module = nn.Linear(8, 8)
    module.compile()
    return module


COMPILED = {
    "whole": (lambda: torch.compile(nn.Linear(8, 8)), "Linear"),
    "in place": (in_place, "Linear"),
    "inside": (lambda: Calls(torch.compile(nn.Linear(8, 8))), "Linear"),
    "in place inside": (lambda: nn.Sequential(in_place()), "Linear"),
    "a function": (Calls, "_doubled"),
    "a method": (Method, "Method.forward"),
}


@pytest.mark.parametrize("case", COMPILED)
def test_what_torch_compile_wraps_is_said(case):
    made, name = COMPILED[case]
    said = f"torch.compile is left out: {name} answered as eager PyTorch"
    assert read_run(Workload(made(), torch.randn(4, 8))).warnings == (said,)
    read = read_step(Workload(made(), torch.randn(4, 8), loss="mse", mode="training_step"))
    step = read.step
    assert step.warnings == read.warnings == (said,)


def test_what_is_not_compiled_is_not_said():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    torch.compile(copy.deepcopy(model))
    assert read_run(Workload(model, torch.randn(4, 8))).warnings == ()


@pytest.mark.tvm
def test_the_command_says_it_for_both_runtimes(nets, capsys):
    for words, what in zip(RUNTIMES.values(), ("eager PyTorch", "what TVM compiles of it"), strict=True):
        assert cli.main(["network", f"{nets}:compiled", "--json", *words]) == 0
        out, error = capsys.readouterr()
        said = f"torch.compile is left out: Sequential answered as {what}"
        assert said in json.loads(out)["warnings"] and said in error


def test_a_group_is_a_row(nets, capsys):
    assert cli.main(["network", f"{nets}:grouped_norm", "--json", *RUNTIMES["torch"]]) == 0
    names = [kernel["kernel"] for kernel in json.loads(capsys.readouterr().out)["kernels"]]
    assert "layer_norm 8x8192" in names


@pytest.mark.parametrize(
    "model", [nn.Linear(8, 8).requires_grad_(False), nn.Sequential(nn.ReLU(), nn.Flatten())], ids=["frozen", "none"]
)
def test_a_step_without_a_parameter_to_train_is_refused_as_its_backward_pass_is(model):
    x = torch.randn(4, 8)
    with pytest.raises(RuntimeError, match="does not require grad"):
        model(x).sum().backward()
    with pytest.raises(CdmppError, match="no parameter of .* requires a gradient"):
        read_step(Workload(model, (x,), mode="training_step"))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(8, 8), (4, 8)),
        (nn.Conv2d(3, 8, 3), (1, 3, 8, 8)),
        (nn.Conv1d(3, 8, 3, bias=False), (1, 3, 8)),
    ],
    ids=["linear", "convolution", "of one axis"],
)
def test_factors_of_two_types_are_refused_as_torch_refuses_them(model, shape):
    x = torch.randn(shape)
    with pytest.raises(RuntimeError):
        model.bfloat16()(x)
    with pytest.raises(CdmppError, match="bfloat16 by float32, which PyTorch refuses|cannot be exported"):
        read_run(Workload(model, (x,)))
    assert read_run(Workload(model, (x,), precision="bf16-autocast")).graph.calls


def test_examples_are_counted_in_a_list_of_inputs_too():
    class Each(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
            return [self.inner(x) for x in xs]

    assert read_run(Workload(Each(), ([torch.randn(4, 8), torch.randn(4, 8)],))).batch == 4

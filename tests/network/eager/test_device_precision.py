"""Precisions on devices that have matrix units of a type, compute without them, or cannot run it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import cli, devices
from cdmpp.errors import UsageError
from cdmpp.network.eager.device_precision import has_units, precision_on
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.precision import PRECISIONS, precision_of
from cdmpp.network.workload import Workload
from cdmpp.operators.measured_form import measured_form
from cdmpp.operators.operator import EagerOperator


@pytest.mark.parametrize(
    ("dtype", "having", "lacking"),
    [
        ("bfloat16", ("a100", "l4", "rtx3090", "mi100", "h100"), ("t4", "v100", "p4", "k80")),
        ("tf32", ("a100", "rtx4090", "mi300x"), ("t4", "mi210")),
        ("float8", ("h100", "l4", "rtx4090", "mi300x", "b200"), ("a100", "rtx3090", "mi250", "t4")),
        ("mxfp8", ("b200", "gb200", "gb300"), ("h100", "l4", "mi300x", "a100")),
    ],
)
def test_architectures_of_datasheets_say_which_types_units_multiply(dtype, having, lacking):
    assert all(has_units(devices.get(name), dtype) for name in having)
    assert not any(has_units(devices.get(name), dtype) for name in lacking)
    assert has_units(devices.get("epyc-genoa"), dtype) is None


def test_what_a_device_lacks_is_refused_or_computed_as_torch_does_it_and_said():
    with pytest.raises(UsageError, match="a100: precision float8-tensorwise: it has no matrix units for float8"):
        precision_on(precision_of("float8"), devices.get("a100"))
    with pytest.raises(
        UsageError, match="h100: precision mxfp8: it has no matrix units for mxfp8, as GPUs from Blackwell"
    ):
        precision_on(precision_of("mxfp8"), devices.get("h100"))
    used, said = precision_on(precision_of("tf32"), devices.get("t4"))
    assert used.name == "fp32" and "torch computes in fp32" in said[0]
    used, said = precision_on(precision_of("bf16-mixed"), devices.get("t4"))
    assert used.name == "bf16-autocast" and "answered as those of float32" in said[0]
    assert precision_on(precision_of("bf16"), devices.get("h100")) == (PRECISIONS["bf16"], ())


def predicted(precision, device="h100", size=4096):
    layer = Workload(nn.Linear(size, size, bias=False), torch.zeros(size, size), precision=precision)
    return cdmpp.predict_network(layer, device=device, runtime="torch")


def test_products_take_their_time_by_type():
    seconds = {name: predicted(name).kernels for name in ("fp32", "tf32", "bf16", "float8-tensorwise")}
    product = {name: max(k.latency_s for k in kernels if k.op_class == "dense") for name, kernels in seconds.items()}
    assert product["tf32"] == pytest.approx(2 * product["bf16"], rel=0.2)
    assert product["bf16"] == pytest.approx(2 * product["float8-tensorwise"], rel=0.35)
    assert product["fp32"] > 4 * product["tf32"]
    (tf32,) = seconds["tf32"]
    low, high = tf32.intervals[0.8]
    (bf16,) = seconds["bf16"]
    assert high / low > 3 * bf16.intervals[0.8][1] / bf16.intervals[0.8][0] and "stand-in" in tf32.flags
    assert predicted("bf16", "t4").latency_s > 2 * predicted("fp16", "t4").latency_s


def test_measured_forms_read_as_many_bytes():
    for dtype, factor in (("tf32", 2), ("float8", 0.5)):
        one = EagerOperator("linear", {"rows": 64, "inner": 128, "cols": 256, "bias": 0}, dtype)
        form = measured_form(one)
        assert (form["inner"], form.dtype) == (128 * factor, "bfloat16") and form.read_bytes == one.read_bytes
    grouped = EagerOperator.parse("conv2d", "1x8x8x8x3", "tf32", groups=8)
    assert measured_form(grouped).dtype == "float32"


def test_float8_casts_both_factors_of_each_product_as_torchao_does():
    """Of its log: absolute values, their largest, a cast, a product with the scale, ends, a cast; scales besides."""
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 10))  # the last one cannot be converted
    for scaling, kernels in (("tensorwise", 6 + 5), ("rowwise", 6 + 8)):
        given = Workload(model, torch.randn(32, 64), loss="mse", precision=f"float8-{scaling}", mode="training_step",
                         optimizer="none")  # fmt: skip
        read = read_step(given)
        operators = [(call.phase, read.operators[call.call.task_id]) for call in read.step.calls]
        float8 = [phase for phase, one in operators if one.dtype == "float8"]
        assert float8 == ["forward", "backward"]  # the input needs no gradient
        plain = read_step(Workload(model, torch.randn(32, 64), loss="mse", precision="bf16", optimizer="none",
                                   mode="training_step"))  # fmt: skip
        assert len(operators) == len(plain.step.calls) + 2 * 2 * kernels + 1  # the bias is added behind it
        assert read.step.memory.parameter_bytes == plain.step.memory.parameter_bytes
        assert len({call.call.name for call in read.step.calls}) == len(operators)


class Experts(nn.Module):
    """Rows of four experts, next to a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Linear(64, 64), nn.Parameter(torch.randn(4, 64, 32, dtype=torch.bfloat16))

    def forward(self, x):
        ends = torch.arange(8, 33, 8, dtype=torch.int32)
        return torch._grouped_mm(self.first(x), self.up, offs=ends)


@pytest.mark.parametrize(("precision", "casts"), [("float8-current", 2), ("mxfp8", 1)])
def test_transformer_engine_casts_a_factor_once_by_one_kernel(precision, casts):
    """Of linear layers and of experts; with a scale for the tensor another kernel finds its largest value."""

    def step(precision):
        given = Workload(Experts(), torch.randn(32, 64), loss=lambda y: y.float().mean(), precision=precision,
                         mode="training_step", optimizer="none")  # fmt: skip
        return read_step(given)

    read, plain = step(precision), step("bf16")
    operators = [(call.phase, read.operators[call.call.task_id]) for call in read.step.calls]
    float8 = [(phase, one.name) for phase, one in operators if one.dtype == "float8"]
    assert float8 == [("forward", "linear"), ("forward", "bmm"), *[("backward", "bmm")] * 2, ("backward", "linear")]
    # of the forward pass the two inputs; of the backward pass the gradient of what the experts give: the first layer's
    # input needs no gradient, and its weight's reads what was cast before
    assert len(operators) == len(plain.step.calls) + 3 * casts + 1, "the bias is added behind its layer"
    moved = [one for phase, one in operators if phase == "forward" and one.name == "copy"]
    assert max(one.io_bytes for one in moved) == pytest.approx(4 * 32 * 64, rel=0.01)
    assert read.step.memory.parameter_bytes == plain.step.memory.parameter_bytes


def test_the_command_line_says_what_a_device_lacks(tmp_path, capsys):
    file = tmp_path / "net.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(64, 64), (torch.zeros(64, 64),)\n")
    words = ["network", f"{file}:make", "--runtime", "torch", "--precision"]
    assert cli.main([*words, "bf16-mixed", "--device", "t4"]) == 0
    told = capsys.readouterr()
    assert "bf16-autocast, inference" in told.out and "no matrix units for bfloat16" in told.err
    assert cli.main([*words, "fp8", "--device", "a100"]) == 2
    assert "it has no matrix units for float8" in capsys.readouterr().err
    swept = tmp_path / "swept.py"
    swept.write_text(file.read_text().replace("make()", "make(batch)").replace("(64, 64),)", "(batch, 64),)"))
    given = ["network", f"{swept}:make", "--runtime", "torch", "--device", "a100", "--sweep", "batch=2,4"]
    assert cli.main([*given, "--precision", "fp8"]) == 2
    assert "no matrix units for float8" in capsys.readouterr().err
    assert cli.main([*words, "int4", "--device", "a100"]) == 2
    assert "Expected one of fp32, tf32, bf16" in capsys.readouterr().err
    assert cli.main([*words[:2], "--device", "a100", "--precision", "bf16"]) == 2
    assert "is of --runtime torch" in capsys.readouterr().err


class Own(nn.Linear):
    """It multiplies by itself, too, which is no product of its own layer's class."""


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.attention, self.last = Own(64, 64), nn.MultiheadAttention(64, 4), nn.Linear(64, 64)

    def forward(self, x):
        x = self.attention(*[self.own(x)] * 3, need_weights=False)[0]
        return nn.functional.linear(self.last(x), self.last.weight)


def test_float8_converts_linear_layers_alone():
    read = read_run(Workload(Mixed(), torch.zeros(8, 2, 64), precision="float8"))
    found = [read.operators[call.task_id] for call in read.graph.calls]
    assert [one.dtype for one in found if one.name == "linear"] == ["float8", *["bfloat16"] * 2, "float8", "bfloat16"]
    with pytest.raises(UsageError, match=r"no torch\.nn\.Linear whose sizes are multiples of 16"):
        read_run(Workload(nn.Sequential(nn.Linear(64, 10)), torch.zeros(8, 64), precision="float8"))


def test_points_of_a_sweep_convert_the_same_layers(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nfrom tests.network.eager.test_device_precision import Mixed\n"
        "def make(batch):\n    return Mixed(), (torch.zeros(batch, 8, 64),)\n"
    )
    given = Workload(f"{file}:make", precision="float8")
    swept = cdmpp.sweep_network(given, axes={"batch": [2, 3, 4]}, device="h100", runtime="torch", progress=False)
    alone = [
        cdmpp.predict_network(replace(given, batch=batch), device="h100", runtime="torch").latency_s
        for batch in (2, 3, 4)
    ]
    assert [one.latency_s for one in swept.points] == pytest.approx(alone, rel=1e-5)

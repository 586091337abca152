"""Products of quantised factors: bytes of the packed types, never those of float32; refusals by module path."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.workload import Workload
from cdmpp.predict.flags import STAND_IN

aten = torch.ops.aten
INNER, COLS, GROUP = 256, 512, 32


class Dynamic(nn.Module):
    """int8 on both sides, scales by row and by column, as torchao's dynamic quantisation runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 127, (COLS, INNER), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(COLS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        whole = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return torch._int_mm(whole, self.weight.t()) * scale * self.scale


class FourBits(nn.Module):
    """Weights of 4 bits as they lie on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(COLS // 8, INNER // 128, 32, 4, dtype=torch.int32))
        self.register_buffer("scale", torch.zeros(INNER // GROUP, COLS, 2, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int4pack_mm(x, self.weight, GROUP, self.scale)


class EightBits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(COLS, INNER, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(COLS, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int8pack_mm(x, self.weight, self.scale)


def product(model: nn.Module, x: torch.Tensor):
    read = read_run(Workload(model, x))
    (found,) = [one for one in read.operators.values() if one.name == "linear"]
    return found, read


def test_int8_on_both_sides_moves_a_byte_an_element():
    found, read = product(Dynamic(), torch.randn(64, INNER))
    assert found.io_bytes == 64 * INNER + INNER * COLS + 2 * 64 * COLS
    assert "product of int8, int32 out" in read.stand_ins.values()
    assert read.graph.weight_bytes == INNER * COLS + 4 * COLS


@pytest.mark.parametrize(("model", "bits"), [(FourBits(), 4), (EightBits(), 8)])
def test_packed_weights_are_read_as_they_lie(model, bits):
    few, read = product(model, torch.randn(8, INNER).bfloat16())
    assert few.io_bytes == 2 * 8 * INNER + INNER * COLS * bits // 8 + 2 * 8 * COLS * bits // 16
    assert set(read.stand_ins.values()) == {f"product with weights of {bits} bits"}
    assert read.graph.weight_bytes == sum(one.nbytes for one in model.buffers())
    many, _ = product(model, torch.randn(512, INNER).bfloat16())
    assert many.flops == 2 * 512 * INNER * COLS


def test_the_answer_warns_and_is_faster_than_halves():
    x = torch.randn(1, 4096).bfloat16()

    class Large(FourBits):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.register_buffer("weight", torch.zeros(4096 // 8, 4096 // 128, 32, 4, dtype=torch.int32))
            self.register_buffer("scale", torch.zeros(4096 // GROUP, 4096, 2, dtype=torch.bfloat16))

    packed, plain = (
        cdmpp.predict_network(model, x, device="h100", runtime="torch")
        for model in (Large(), nn.Linear(4096, 4096, bias=False).bfloat16())
    )
    assert packed.kernels_s < plain.kernels_s
    assert any(STAND_IN in kernel.flags for kernel in packed.kernels)
    assert any("stand-in" in warning for warning in packed.warnings)


@pytest.mark.parametrize("name", ["matmul", "linear", "einsum"])
def test_other_products_of_whole_numbers_are_refused_by_place(name):
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            whole = x.to(torch.int32)
            if name == "einsum":
                return torch.einsum("ab,bc->ac", whole, whole)
            return whole @ whole if name == "matmul" else nn.functional.linear(whole, whole)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).float()

    with pytest.raises(CdmppError, match="in inner.*multiplies int32"):
        read_run(Workload(Outer(), torch.randn(8, 8)))


def test_modules_of_cpus_are_refused_by_path():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    with pytest.raises(CdmppError, match="0 \\(Linear\\) is quantised.*CPUs alone"):
        read_run(Workload(quantised, torch.randn(2, 8)))

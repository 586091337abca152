"""Nodes of exported graphs become framework operators; what nothing here knows is refused by name and place."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten import calls_of


def operators_of(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
    exported = torch.export.export(module.eval(), inputs)
    calls = [calls_of(node) for node in exported.graph.nodes if node.op == "call_function"]
    return [str(operator) for call in calls for operator in call.operators]


class Attention(nn.Module):
    """Two heads, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2.0, dim=-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(3, 5, 8))


def test_attention_is_products_softmax_and_what_lies_between():
    assert operators_of(Attention(), torch.randn(3, 5, 8)) == [
        "layer_norm 15x8",
        "linear 15x8x24",
        "permute 30x4",
        "transpose 24x5",
        "bmm 6x5x4x5",
        "div_scalar 30x5",
        "softmax 30x5",
        "permute 30x4",
        "bmm 6x5x5x4",
        "permute 30x4",
        "linear 15x8x8 bias=0",
        "add 15x8",
    ]


def test_a_convolution_block():
    block = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(6, 4),
    )
    assert operators_of(block, torch.randn(2, 3, 16, 16)) == [
        "conv2d 2x3x6x16x3 stride=2 padding=1",
        "add_broadcast 96x8",
        "batch_norm 12x64",
        "relu 96x8",
        "max_pool2d 2x6x8x2 stride=2",
        "mean 12x16",
        "linear 2x6x4",
    ]


def test_a_broadcast_factor_is_no_second_tensor():
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y[:1] - y + y[0, 0]

    told = operators_of(Scaled(), torch.randn(4, 6), torch.randn(4, 6))
    assert told == ["mul_broadcast 4x6", "sub 4x6", "add_scalar 4x6"]


class Copies(TorchDispatchMode):
    """What PyTorch copies while it runs, as ``rows x cols``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.clone.default:
            self.seen.append(f"{args[0].numel() // args[0].shape[-1]}x{args[0].shape[-1]}")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("groups", [1, 2])
def test_the_copies_are_those_that_pytorch_makes(groups):
    class Grouped(Attention):
        """Keys and values of one head serve two, laid out anew; a dense layer reads heads that stand apart."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            k = k[:, :1].expand(3, 2, 5, 4)
            heads = (q @ k.transpose(-1, -2) @ v).permute(0, 2, 1, 3)
            return self.out(heads.flatten(2)) + self.out(x.transpose(0, 1)[:3]).transpose(0, 1)[:, :1]

    module, x = (Attention() if groups == 1 else Grouped()).eval(), torch.randn(3, 5, 8)
    with Copies() as copies, torch.no_grad():
        module(x)
    told = [one.split()[1] for one in operators_of(module, x) if one.split()[0] in ("copy", "permute", "transpose")]
    assert told == copies.seen


def test_an_elementwise_operator_that_nobody_measured_is_answered_as_another():
    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    nodes = torch.export.export(Sine(), (torch.randn(4, 6),)).graph.nodes
    (call,) = [calls_of(node) for node in nodes if node.op == "call_function"]
    assert ([str(one) for one in call.operators], call.stands_for) == (["relu 4x6"], "sin")


@pytest.mark.parametrize(
    "module",
    [nn.Hardswish(inplace=True), nn.Hardswish(), nn.PReLU(), nn.LogSigmoid(), nn.Mish(inplace=True), nn.ReLU6(True)],
)
def test_elementwise_operators_that_torch_does_not_mark_as_such_are_some(module):
    (operator,) = operators_of(nn.Sequential(nn.Identity(), module), torch.randn(4, 8))
    assert operator in ("relu 4x8", "add 4x8")


@pytest.mark.parametrize(("module", "image"), [(nn.MaxPool3d(2), (4, 4, 4)), (nn.AvgPool1d(2), (8,))])
def test_poolings_over_one_axis_or_three_move_as_many_bytes(module, image):
    (operator,) = operators_of(module, torch.randn(2, 3, *image))
    elements = 2 * 3 * torch.Size(image).numel()
    out = elements // 2 ** len(image)
    assert operator == f"copy 1x{(elements + out) // 2}"


def test_what_no_kind_can_stand_for_is_refused_with_its_place():
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.solver = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.solver(x)

    with pytest.raises(UnsupportedProgramError, match=r"linalg_inv.*in solver"):
        operators_of(Outer(), torch.randn(4, 4))


def test_a_window_that_is_not_square_is_refused():
    with pytest.raises(UnsupportedProgramError, match=r"window of \[1, 3\]"):
        operators_of(nn.AvgPool2d((1, 3)), torch.randn(2, 3, 8, 9))


def test_a_type_that_nobody_measured_is_refused():
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    with pytest.raises(UnsupportedProgramError, match="complex128"):
        operators_of(Doubled(), torch.randn(2, 3, dtype=torch.complex128))


@pytest.mark.parametrize(
    ("module", "shape", "expected", "stands_for"),
    [
        (nn.Conv2d(4, 8, 3, padding="same", bias=False), (1, 4, 12, 12), "1x4x8x12x3 padding=1", ""),
        (nn.Conv2d(4, 8, 3, padding=1, bias=False), (4, 12, 12), "1x4x8x12x3 padding=1", ""),
        (nn.Conv1d(4, 8, 5, 2, bias=False), (4, 53), "1x20x8x5x1", "convolution over 1 axes"),
        (nn.Conv2d(4, 8, 3, padding="valid", bias=False), (1, 4, 9, 16), "1x4x8x12x3", ""),
        (nn.Conv2d(4, 8, 3, 1, 2, 2, bias=False), (1, 4, 12, 12), "1x36x8x12x1", "dilated convolution"),
        (nn.Conv2d(6, 9, (1, 7), padding=(0, 3), groups=3, bias=False), (2, 6, 12, 12), "2x42x9x12x1 groups=3",
         "convolution that is not square"),
        (nn.Conv2d(4, 8, 3, (1, 2), 1, bias=False), (1, 4, 8, 16), "1x36x8x8x1", "convolution that is not square"),
        (nn.Conv1d(4, 8, 5, 2, bias=False), (2, 4, 53), "2x20x8x5x1", "convolution over 1 axes"),
        (nn.Conv3d(2, 4, 3, padding=1, bias=False), (1, 2, 4, 4, 4), "1x54x4x8x1", "convolution over 3 axes"),
        (nn.ConvTranspose2d(8, 4, 2, 2, bias=False), (1, 8, 6, 6), "1x8x16x6x1", "transposed convolution"),
        (nn.ConvTranspose1d(8, 4, 4, 2, bias=False), (1, 8, 16), "1x8x16x4x1", "transposed convolution"),
    ],
)  # fmt: skip
def test_convolutions_that_nobody_measured_are_products_of_as_many_operations(module, shape, expected, stands_for):
    x = torch.randn(*shape)
    nodes = torch.export.export(module, (x,)).graph.nodes
    (call,) = [calls_of(node) for node in nodes if node.op == "call_function"]
    (operator,) = call.operators
    assert (str(operator), call.stands_for) == (f"conv2d {expected}", stands_for)
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    with counter:
        module(x)
    assert operator.flops == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize(
    ("equation", "first", "second", "expected"),
    [
        ("bhid, bhjd -> bhij", (2, 3, 5, 4), (2, 3, 7, 4), "bmm 6x5x4x7 transposed=1"),
        ("bhij,bhjd->bhid", (2, 3, 5, 7), (2, 3, 7, 4), "bmm 6x5x7x4"),
        ("nld,dk->nlk", (2, 3, 8), (8, 5), "linear 6x8x5 bias=0"),
        ("i,j->ij", (4,), (6,), "mul 4x6"),
    ],
)
def test_einsum_is_a_product(equation, first, second, expected):
    class Summed(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.einsum(equation, x, y)

    assert operators_of(Summed(), torch.randn(*first), torch.randn(*second)) == [expected]


def test_an_einsum_of_three_tensors_is_refused_with_its_equation():
    class Summed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("ij,jk,kl->il", x, x, x)

    with pytest.raises(UnsupportedProgramError, match="einsum ij,jk,kl->il"):
        operators_of(Summed(), torch.randn(4, 4))


def test_a_joint_graphs_convolution_has_its_groups_at_the_end():
    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution.default(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2)

    class Block(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return block(x, weight)

    found = operators_of(Block(), torch.randn(1, 4, 8, 8), torch.randn(6, 2, 3, 3))
    assert found == ["conv2d 1x4x6x8x3 padding=1 groups=2"]


def test_random_masks_of_training_are_written():
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.empty_like(x).bernoulli_(0.5)

    assert operators_of(Masked(), torch.randn(4, 6))[-2:] == ["copy 4x6", "mul 4x6"]

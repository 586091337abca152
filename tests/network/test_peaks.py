"""Peak memory of training steps: what PyTorch's allocator holds at most in a step that really runs here."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.library_step_memory import peak_bytes
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from cdmpp.programs.training.loss import with_loss
from tests.network.eight_networks import Block, LlamaBlock, Residual, RMSNorm, Tokens


class Again(nn.Module):
    """A block that runs again in the backward pass."""

    def __init__(self, inner: nn.Module, is_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.is_reentrant = inner, is_reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.is_reentrant)


class Expanded(nn.Module):
    """A block as of MobileNetV2, whose activations write in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU6(inplace=True),
            nn.Conv2d(4 * width, 4 * width, 3, 2, 1, groups=4 * width, bias=False), nn.BatchNorm2d(4 * width),
            nn.ReLU6(inplace=True), nn.Conv2d(4 * width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.body(x)


class Images(nn.Module):
    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.first, self.blocks, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.ModuleList(blocks), nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def _tokens(kind: Any) -> tuple[list[nn.Module], Any, torch.Tensor]:
    width = 128
    blocks: list[nn.Module] = [kind(width, 4) for _ in range(3)]
    return blocks, partial(Tokens, width=width, norm=RMSNorm(width)), torch.randint(0, 50, (8, 12))


def _images(blocks: list[nn.Module], width: int) -> tuple[list[nn.Module], Any, torch.Tensor]:
    return blocks, partial(Images, width=width), torch.randn(8, 3, 128, 128)


NETWORKS = {
    "transformer": partial(_tokens, Block),
    "llama": partial(_tokens, LlamaBlock),
    "resnet": lambda: _images([Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 64, 2)], 64),
    "mobilenet": lambda: _images([Expanded(16), Expanded(32)], 64),
}


@pytest.mark.parametrize("mode", ["kept", "non-reentrant", "reentrant"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_what_pytorch_holds_to_3_percent(name, mode):
    torch.manual_seed(0)
    blocks, make, inputs = NETWORKS[name]()
    model = make([one if mode == "kept" else Again(one, mode == "reentrant") for one in blocks]).train()
    step = read_step(Workload(model, (inputs,), optimizer="sgd", mode="training_step"), "cpu").step
    update = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    held = peak_bytes(*with_loss(model, (inputs,), "cross_entropy"), make=update)
    assert step.peak_bytes == pytest.approx(held, rel=0.03)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN convolves bfloat16 from AVX-512 on, PyTorch before"
)
def test_the_gradient_of_a_filter_of_16_bits_is_summed_in_float32():
    blocks: list[nn.Module] = [nn.Conv2d(16, 512, 3, 2, 1), nn.Conv2d(512, 512, 3, 2, 1)]
    model, image = Images(blocks, 512).train().bfloat16(), torch.randn(2, 3, 32, 32).bfloat16()
    step = read_step(Workload(model, (image,), precision="bf16", optimizer="sgd", mode="training_step"), "cpu").step
    update = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    held = peak_bytes(*with_loss(model, (image,), "cross_entropy"), make=update)
    assert step.peak_bytes == pytest.approx(held, rel=0.03)

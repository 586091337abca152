"""Autocast's rules of a GPU on tensors of a CPU: those of PyTorch's page on autocast, and the CPU's own again after."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from cdmpp.programs.autocast_kernels import gpu_rules

BF16, FP32 = torch.bfloat16, torch.float32
RULES = {
    "linear": (lambda x, y: functional.linear(x, x), BF16),
    "matmul": (lambda x, y: x @ y, BF16),
    "conv2d": (lambda x, y: functional.conv2d(x.view(1, 1, 4, 4), x.view(1, 1, 4, 4)), BF16),
    "attention": (lambda x, y: functional.scaled_dot_product_attention(*[x.view(1, 1, 4, 4)] * 3), BF16),
    "softmax": (lambda x, y: torch.softmax(y, -1), FP32),
    "log_softmax with a type": (lambda x, y: torch.log_softmax(y, -1, torch.float64), torch.float64),
    "layer_norm": (lambda x, y: functional.layer_norm(y, (4,)), FP32),
    "exp": (lambda x, y: torch.exp(y), FP32),
    "sum": (lambda x, y: y.sum(), FP32),
    "norm": (lambda x, y: y.norm(2), FP32),
    "cross_entropy": (lambda x, y: functional.cross_entropy(y, torch.zeros(4, dtype=torch.long)), FP32),
    "mse_loss": (lambda x, y: functional.mse_loss(y, y), FP32),
    "cat": (lambda x, y: torch.cat([x, y]), FP32),
    "gelu": (lambda x, y: functional.gelu(y), BF16),
    "add": (lambda x, y: x + y, FP32),
    "sum of whole numbers": (lambda x, y: torch.ones(3, dtype=torch.long).sum(), torch.long),
}


@pytest.mark.parametrize("name", RULES)
def test_operators_run_in_the_type_that_they_have_on_a_gpu(name):
    run, dtype = RULES[name]
    with gpu_rules(), FakeTensorMode(), torch.autocast("cpu", BF16):
        assert run(torch.empty(4, 4), torch.empty(4, 4, dtype=BF16)).dtype == dtype


def test_gradients_go_through_casts_and_the_rules_of_cpus_are_back_afterwards():
    weight = torch.randn(4, 4, requires_grad=True)
    with gpu_rules(), torch.autocast("cpu", BF16):
        loss = torch.softmax(functional.linear(torch.randn(2, 4), weight), -1).sum()
    loss.backward()
    assert loss.dtype == weight.grad.dtype == FP32
    with torch.autocast("cpu", BF16):
        assert torch.softmax(functional.linear(torch.randn(2, 4), weight), -1).dtype == BF16

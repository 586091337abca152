#!/usr/bin/env bash
# torch.export keeps the forward pass of a torch.autograd.Function and drops its backward pass without a word.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13.
# Expected: a module that is exported with gradients on has the gradients of the eager one, or the export refuses or
# warns: it tells of other things that it cannot keep.
# Found: a straight-through estimator (round forwards, identity backwards), the core of quantisation-aware training,
# becomes aten.round, whose gradient is zero: the exported module does not train.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import warnings

import torch
from torch import nn

print("torch", torch.__version__)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return Rounded.apply(self.linear(x))


torch.manual_seed(0)
model, x = Net(), torch.randn(4, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exported = torch.export.export(model, (x,))
told = [str(one.message) for one in caught if "autograd" in str(one.message).lower()]


def gradient(one):
    (found,) = torch.autograd.grad(one(x).sum(), dict(one.named_parameters())["linear.weight"])
    return float(found.abs().sum())


eager, after = gradient(model), gradient(exported.module())
print([str(node.target) for node in exported.graph.nodes if node.op == "call_function"], "warnings:", told)
print(f"sum of the weight's gradients: eager {eager:.3f}, exported {after:.3f}")
assert eager > 0 and after == 0 and not told, "the backward pass is kept, or its loss is told, now"
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

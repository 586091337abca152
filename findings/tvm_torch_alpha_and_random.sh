#!/usr/bin/env bash
# TVM's importer of torch.export: alpha of torch.add is ignored, and what draws random numbers draws none.
#
# aten.add.Tensor and aten.sub.Tensor have a factor of the second operand, alpha; one would expect an error where it is
# not read. The importer adds without it. aten.randn becomes a constant that is drawn once, at import; aten.bernoulli.p
# and aten.native_dropout become their input, aten.exponential zeros. All have the right shape and type, so that
# comparing those with what torch declares does not find them: only running the operators does.
#
# Seen with apache-tvm 0.27.0.post1 and torch 2.13.0 (CPU). Needs Linux on x86-64 or AArch64, Python 3.11 to 3.13, no GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - 2>/dev/null <<'EOF'
import sys

import numpy as np
import torch
import tvm
from torch.nn import functional as F
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

CASES = {
    "add, alpha=3": lambda x: torch.add(x, x, alpha=3),
    "sub, alpha=3": lambda x: torch.sub(x, x, alpha=3),
    "randn_like": lambda x: 0 * x + torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(x, 0.5),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "exponential_": lambda x: 0 * x + torch.empty_like(x).exponential_(),
}
EXPECTED = {"add, alpha=3": 2, "sub, alpha=3": 0, "bernoulli": 1, "dropout": 1, "exponential_": 0}
"""Every value that TVM makes of ones; torch: 4, -2, zeros and ones, zeros and twos, positive numbers."""


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


print(f"apache-tvm {tvm.__version__}, torch {torch.__version__}")
ones, as_described = torch.ones(64), True
for name, function in CASES.items():
    exported = torch.export.export(Called(function), (ones,)).run_decompositions()
    built = tvm.compile(from_exported_program(exported), tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(built, tvm.cpu())

    def run():
        found = machine["main"](tvm.runtime.tensor(ones.numpy()))
        return (found if hasattr(found, "numpy") else found[0]).numpy()

    first, second = run(), run()
    print(f"{name}: TVM {first[:3]}, again {second[:3]}, torch {function(ones)[:3].numpy()}")
    as_described &= bool(np.all(first == second)) and bool(np.all(first == EXPECTED.get(name, first)))
sys.exit(0 if as_described else 1)
EOF
echo "as described: no alpha, and nothing is drawn when the module runs"

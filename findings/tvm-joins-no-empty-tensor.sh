#!/bin/bash
# What surprises: torch.cat skips a tensor of shape (0,) whatever the rank of the others, and the caches of transformers
# begin as such a tensor: every decoder that returns its keys and values joins one. torch.export keeps the call and
# TVM's importer refuses it, since all parts of a concatenation must have one rank.
# Versions: torch 2.13.0, apache-tvm 0.27.0.post1.
# One would expect: the importer leaves out what has no elements, as torch does, and the results are equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 apache-tvm==0.27.0.post1 numpy==2.4.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from tvm.relax.frontend.torch import from_exported_program

print("torch", torch.__version__, "apache-tvm", version("apache-tvm"))


class Joined(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x.new_empty(0), x], dim=-2)


x = torch.randn(1, 2, 3, 4)
assert torch.equal(Joined()(x), x)
exported = torch.export.export(Joined(), (x,))
assert torch.equal(exported.module()(x), x)
print("torch and torch.export: shape", tuple(Joined()(x).shape))
try:
    from_exported_program(exported)
except Exception as error:
    print("TVM:", type(error).__name__, str(error).splitlines()[0])
    sys.exit(0 if "same ndim" in str(error) else 1)
print("TVM imports it now")
sys.exit(1)
PYTHON

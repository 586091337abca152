#!/usr/bin/env bash
# TVM's importer of torch.export: x[:, -1] reads before the tensor.
#
# aten.select.int keeps the index that the user wrote, -1 for the last. The importer makes a relax.take of it, whose default
# mode reads wherever the index points: the result is what lies in memory before the row, or before the whole tensor.
# The same holds for tensors of indices (x[index] with -1 in index). Shape and type are right, and nothing warns. The last
# token of a language model is read in this way. Expected: the last column.
#
# Seen with apache-tvm 0.27.0.post1 and torch 2.13.0 (CPU). Needs Linux on x86-64 or AArch64, Python 3.11 to 3.13, no GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - 2>/dev/null <<'EOF'
import sys

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Last(torch.nn.Module):
    def forward(self, x):
        return x[:, -1]


print(f"apache-tvm {tvm.__version__}, torch {torch.__version__}")
x = torch.arange(1.0, 13.0).reshape(3, 4)
exported = torch.export.export(Last(), (x,)).run_decompositions()
built = tvm.compile(from_exported_program(exported), tvm.target.Target({"kind": "llvm"}))
found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
found = (found if hasattr(found, "numpy") else found[0]).numpy()
print(f"torch {Last()(x).tolist()}, TVM {found.tolist()}")
sys.exit(0 if found[1:].tolist() == [4.0, 8.0] and Last()(x).tolist() == [4.0, 8.0, 12.0] else 1)
EOF
echo "as described: the last column is read one element before each row"

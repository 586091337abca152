#!/usr/bin/env bash
# TVM's importer of torch.export: grid_sample gets the shape of another image.
#
# torch has the grid as [N, H, W, 2], Relax's image.grid_sample as [N, 2, H, W]. The ONNX importer permutes the grid, the
# torch importer does not: a grid of 5 x 7 points makes an image of 7 x 2, without a word. A grid of [N, n, 2, 2] even
# gives the right shape, with other values. Expected: [1, 3, 5, 7], as torch declares in the graph that is imported.
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
from tvm.relax.frontend.torch import from_exported_program


class Sampled(torch.nn.Module):
    def forward(self, image, grid):
        return torch.nn.functional.grid_sample(image, grid, align_corners=False)


print(f"apache-tvm {tvm.__version__}, torch {torch.__version__}")
exported = torch.export.export(Sampled(), (torch.rand(1, 3, 8, 8), torch.rand(1, 5, 7, 2)))
declared = list(exported.graph.output_node().args[0][0].meta["val"].shape)
kind = from_exported_program(exported)["main"].ret_ty
imported = [int(size) for size in (kind.fields[0] if hasattr(kind, "fields") else kind).shape.values]
print(f"declared by torch {declared}, imported by TVM {imported}")
sys.exit(0 if (declared, imported) == ([1, 3, 5, 7], [1, 3, 7, 2]) else 1)
EOF
echo "as described: the grid is read with its last axis second"

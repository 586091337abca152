#!/usr/bin/env bash
# torch 2.13.0: torch.nn.functional.grouped_mm multiplies float32 on a CPU, and is refused there on tensors without values.
#
# What surprises: FakeTensorMode promises the shapes and types that a run would have, and torch.export runs a model on such
# tensors. A grouped product of float32 (the experts of a mixture) runs on a CPU, forwards and backwards. Without values it
# is refused: "Expected inputs of BF16 type". So a model that trains cannot be exported in the type in which it trains. With
# bfloat16 both agree.
#
# Expected: the same types with values and without.
# Needs: a pip index or link that gives torch==2.13.0, or TORCH_INDEX=https://download.pytorch.org/whl/cpu
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

logging.disable(logging.CRITICAL)
print("torch", torch.__version__)


def shape(dtype):
    rows, experts = torch.ones(32, 16, dtype=dtype), torch.ones(4, 16, 64, dtype=dtype)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    try:
        return str(tuple(torch.nn.functional.grouped_mm(rows, experts, offs=ends).shape))
    except RuntimeError as error:
        return f"refused: {str(error).splitlines()[0]}"


for dtype in (torch.float32, torch.bfloat16):
    real = shape(dtype)
    with FakeTensorMode():
        fake = shape(dtype)
    print(f"{dtype}: {real} with values, {fake} without")
    assert real == "(32, 64)", "the kernel has changed"
    assert fake.startswith("refused") == (dtype == torch.float32), "what runs without values has changed"
PYTHON

#!/usr/bin/env bash
# torch 2.13.0: a batch norm of bfloat16 with weights of float32 saves its statistics in float32, and in bfloat16 where it
# runs on tensors without values.
#
# What surprises: FakeTensorMode promises the shapes and types that a run would have, and a CPU's batch norm takes an image
# of bfloat16 with weights and running statistics of float32 (that is how mixed precision trains it). The kernel makes the
# saved mean and inverse deviation in float32. Without values both are bfloat16. Who counts bytes of a step, or compiles it,
# takes the wrong type. With weights of bfloat16 both agree.
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
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

print("torch", torch.__version__)


def types(of_weights):
    image = torch.ones(2, 4, 8, 8, dtype=torch.bfloat16)
    weight, bias, mean, variance = (torch.ones(4, dtype=of_weights) for _ in range(4))
    found = torch.native_batch_norm(image, weight, bias, mean, variance, True, 0.1, 1e-5)
    return [str(value.dtype).removeprefix("torch.") for value in found]


for of_weights in (torch.float32, torch.bfloat16):
    real = types(of_weights)
    with FakeTensorMode():
        fake = types(of_weights)
    print(f"weights of {of_weights}: result, mean, inverse deviation are {real} with values, {fake} without")
    if of_weights == torch.float32:
        assert real == ["bfloat16", "float32", "float32"], "the kernel's types have changed"
        assert fake == ["bfloat16"] * 3, "the types without values have changed"
    else:
        assert real == fake, "they differ here too now"
PYTHON

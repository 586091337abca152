#!/usr/bin/env bash
# torch 2.13.0: the mean of some losses is one number whose storage has as many bytes as all differences.
#
# What surprises: mse_loss, smooth_l1_loss and binary_cross_entropy with reduction="mean" return a tensor of no dimension
# and of 4 bytes (nbytes), but the kernel writes the differences into its storage first, which is never made smaller. So a
# loss that is kept for a log, as list.append(loss.detach()), holds the memory of a whole output. l1_loss, huber_loss and
# binary_cross_entropy_with_logits give 4 bytes.
#
# Expected: a storage of 4 bytes.
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
from torch.nn import functional

print("torch", torch.__version__)
output, target = torch.rand(1024, 256), torch.zeros(1024, 256)
found = {}
for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "l1_loss", "huber_loss",
             "binary_cross_entropy_with_logits"):
    loss = getattr(functional, name)(output, target)
    found[name] = loss.untyped_storage().nbytes()
    print(f"{name}: shape {tuple(loss.shape)}, nbytes {loss.nbytes}, storage {found[name]:,} bytes")
large = [name for name, size in found.items() if size == output.nbytes]
assert large == ["mse_loss", "smooth_l1_loss", "binary_cross_entropy"], "other losses keep their differences now"
assert {size for name, size in found.items() if name not in large} == {4}
kept = [functional.mse_loss(output, target).detach() for _ in range(100)]
print(f"100 such losses of mse_loss hold {sum(one.untyped_storage().nbytes() for one in kept):,} bytes")
PYTHON

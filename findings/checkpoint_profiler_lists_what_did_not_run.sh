#!/usr/bin/env bash
# torch.profiler lists, and counts the FLOPs of, a matrix product that torch.utils.checkpoint does not run again.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13.
# Expected: of Linear, GELU, Linear under a non-reentrant checkpoint one product is recomputed: recomputation stops early,
# at the last saved tensor. Events of the backward pass should show one addmm.
# Found: a second addmm with its shapes and FLOPs, which an exception ended before it computed anything: it takes
# microseconds, the first one milliseconds. Who adds up the FLOPs of events counts twice what is recomputed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
block = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512))
x = torch.randn(2048, 512, requires_grad=True)
for _ in range(2):
    loss = checkpoint(block, x, use_reentrant=False).sum()
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profiler:
        loss.backward()
again = [event for event in profiler.events() if event.name == "aten::addmm"]
for event in again:
    print("torch", torch.__version__, "addmm in the backward pass:", event.input_shapes[1:3], "FLOPs", event.flops,
          "CPU us", round(event.cpu_time_total, 1))
assert len(again) == 2 and again[0].flops == again[1].flops > 0, "events of what did not run are gone"
assert min(event.cpu_time_total for event in again) < 0.1 * max(event.cpu_time_total for event in again)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

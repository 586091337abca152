#!/usr/bin/env bash
# DistributedDataParallel broadcasts module buffers in the first forward pass under no_sync, and in no other one: not in
# the one that synchronizes gradients.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13, gloo.
# Expected: a broadcast at the beginning of every forward pass, as the documentation of forward_sync_buffers says, or,
# with gradient accumulation, in the pass outside no_sync.
# Found: with three batches a step (two under no_sync) batch norm's buffers are broadcast 2, 0, 0 times. The flag that
# decides (require_forward_param_sync) is set at the end of a forward pass for the next one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import contextlib
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def broadcasts(model, x):
    with torch.profiler.profile() as profiler:
        loss = model(x).sum()
    return loss, sum(event.count for event in profiler.key_averages() if event.key == "gloo:broadcast")


def main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29871", RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    found = []
    for _ in range(4):
        counts = []
        for number in range(3):
            with contextlib.nullcontext() if number == 2 else model.no_sync():
                loss, count = broadcasts(model, torch.randn(4, 8))
                loss.backward()
            counts.append(count)
        found.append(counts)
    if rank == 0:
        print("torch", torch.__version__, "broadcasts in no_sync, no_sync, synchronized, by step:", found)
        assert found[-1] == [2, 0, 0], "buffers are broadcast in other forward passes now"
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

#!/usr/bin/env bash
# The gradient of an embedding that is divided by words is whole on every rank.
#
# Versions: torch 2.13.0, gloo, Python 3.11 to 3.13.
# Expected: RowwiseParallel gives each of two ranks half of the words of an embedding, and autograd makes the gradient
# of that half, as large as the parameter on the rank.
# Found: the gradient is a DTensor of the placement Replicate: each rank holds that of all words, twice its part of the
# parameter, until the optimizer reads a part of it. With p ranks it is p times as large. That of a ColwiseParallel
# layer has the placement of its weight, so that the gradients of words and of a layer that shares them, on another
# stage of a pipeline, have other sizes, and cannot be summed as they are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def run(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29478", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Embedding(96, 32), nn.Linear(32, 96, bias=False))
    styles = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, init_device_mesh("cpu", (2,)), styles)
    model(torch.randint(0, 96, (4, 16))).square().mean().backward()
    if rank == 0:
        for name, one in model.named_parameters():
            parts = [(tuple(each.to_local().shape), each.placements) for each in (one, one.grad)]
            print(f"{name}: parameter {parts[0]}, gradient {parts[1]}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

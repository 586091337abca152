#!/usr/bin/env bash
# torch 2.13.0: under Schedule1F1B every stage keeps a buffer for each micro-batch of the step; the last one also keeps the
# outputs of all, unless it is told not to return them.
#
# What surprises: 1F1B is chosen because few micro-batches are alive, at most as many as there are stages from one on. More
# of them then cost no memory, and that is how bubbles are made small. But PipelineStage makes a receive buffer a micro-batch
# and direction before the first step and keeps them: 64 micro-batches of 8 MB are 512 MB on each stage, and twice that on
# one in the middle. Between steps, when nothing is in flight, all are still there. step() also returns outputs by default,
# so that the last stage holds the logits of all micro-batches, although a loss was given.
#
# Expected: memory for the micro-batches in flight, whatever their number in a step.
# Needs: a pip index or link that gives torch==2.13.0, or TORCH_INDEX=https://download.pytorch.org/whl/cpu
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 numpy 2>/dev/null
cd "$folder"
cat > job.py <<'PYTHON'
import gc
import sys
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

ROWS, WIDTH = 3, 1021  # a shape that nothing else has
warnings.simplefilter("ignore")


def alive():
    """Distinct tensors of one micro-batch's shape that this process holds."""
    gc.collect()
    found = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.shape == (ROWS, WIDTH)]
    return len({one.untyped_storage().data_ptr() for one in found})


def stage(rank, count, returns, port, told):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    part = nn.Linear(WIDTH, WIDTH)
    schedule = Schedule1F1B(PipelineStage(part, rank, 2, torch.device("cpu")), count, loss_fn=nn.MSELoss())
    for _ in range(2):
        part.zero_grad()
        if rank == 0:
            schedule.step(torch.zeros(count * ROWS, WIDTH))
        else:
            schedule.step(target=torch.zeros(count * ROWS, WIDTH), losses=[], return_outputs=returns)
    dist.barrier()
    told[rank] = alive()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    with mp.Manager() as manager:
        held = {}
        for number, (count, returns) in enumerate(((4, False), (16, False), (16, True), (64, False))):
            told = manager.dict()
            mp.spawn(stage, (count, returns, int(sys.argv[1]) + number, told), nprocs=2)
            held[count, returns] = told[0], told[1]
            print(f"{count} micro-batches, outputs returned {returns}: after a step stages hold {told[0]} and {told[1]}")
        expected = {key: (key[0], 2 * key[0] if key[1] else key[0]) for key in held}
        assert held == expected, f"what stages keep has changed, it was {expected}"
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$folder/venv/bin/python" -W ignore job.py "$port"

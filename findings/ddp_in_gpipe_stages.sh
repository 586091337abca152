#!/usr/bin/env bash
# DistributedDataParallel around the stage of a pipeline works or fails by the order of the micro-batches: the second step
# raises an internal assertion where all forward passes of a step come before its first backward pass.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13, gloo.
# Expected: pipelines of torch.distributed.pipelining take a stage that is wrapped in DistributedDataParallel, as its
# stages do on purpose (no_sync for all micro-batches but the last), whatever the schedule.
# Found: 2 stages x 2 replicas. Schedule1F1B runs 3 steps with 4 micro-batches. ScheduleGPipe, and Schedule1F1B with as
# many micro-batches as stages, raise in the first forward pass of step 2: "rebuilt parameter indices size is not same as
# original model parameters size". DDP notes the order of the gradients until a forward pass rebuilds its buckets; with
# no forward pass between two backward passes each parameter is noted twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

CASES = {"1F1B of 4": (Schedule1F1B, 4), "1F1B of 2": (Schedule1F1B, 2), "GPipe of 4": (ScheduleGPipe, 4)}


def main(rank, name, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="4")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    schedule, micro_batches = CASES[name]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    module = DistributedDataParallel(nn.Linear(8, 8), process_group=mesh.get_group("dp"))
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    runs = schedule(stage, micro_batches, loss_fn=lambda output, _: output.square().mean())
    done, cause = 0, ""
    try:
        for _ in range(3):
            if number == 0:
                runs.step(torch.randn(8, 8))
            else:
                runs.step(target=torch.zeros(8))
            done += 1
    except RuntimeError as error:
        cause = str(error.__cause__ or error).split("INTERNAL")[0].strip()[:80]
    if rank == 0:
        print(f"torch {torch.__version__}, {name} micro-batches: {done} steps of 3 {cause}", flush=True)
        expected = 3 if name == "1F1B of 4" else 1
        os._exit(0 if done == expected else 1)
    os._exit(0)  # others may wait for rank 0; gloo's threads may outlive the interpreter


if __name__ == "__main__":
    for place, name in enumerate(CASES):
        context = mp.spawn(main, args=(name, 29880 + place), nprocs=4, join=False)
        context.processes[0].join(240)
        ended = context.processes[0].exitcode
        for process in context.processes:
            process.kill()
        if ended != 0:
            sys.exit(f"{name} micro-batches behaves in another way now")
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

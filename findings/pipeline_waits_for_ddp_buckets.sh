#!/usr/bin/env bash
# In a pipeline whose stages are under DistributedDataParallel the all-reduces of the stages come one after the other.
#
# Versions: torch 2.13.0, gloo, Python 3.11 to 3.13.
# Expected: a stage sends the gradient of its input to the stage before as soon as it is there, while its own gradients
# are averaged, so that the all-reduces of all stages run at about the same time.
# Found: DistributedDataParallel waits for its buckets in the last hook of the backward pass, and the stage sends the
# gradient behind it. The stage before gets it late, and averages its own gradients later still: a step of p stages ends
# with p all-reduces in a row.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH, MICRO_BATCHES = 2048, 4


def run(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29477", RANK=str(rank), WORLD_SIZE="4")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    module = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), process_group=mesh.get_group("dp")
    )
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, _: output.square().mean())
    x = torch.randn(4 * MICRO_BATCHES, WIDTH)
    given, target = ((x,), {}) if number == 0 else ((), {"target": torch.zeros(len(x))})
    for _ in range(3):
        schedule.step(*given, **target)
    with torch.profiler.profile() as profiler:
        schedule.step(*given, **target)
    if rank == 2:
        reduced, sent = (
            [one.time_range for one in profiler.events() if one.name == name] for name in ("gloo:all_reduce", "c10d::send")
        )
        end, begin = max(one.end for one in reduced), max(one.start for one in sent)
        took = sum(one.end - one.start for one in reduced)
        print("torch", torch.__version__, f"all-reduces of the last stage: {took / 1e3:.1f} ms, {len(sent)} gradients sent,",
              f"the last one {(begin - end) / 1e3:.1f} ms after the end of the last all-reduce")
        assert reduced and len(sent) == MICRO_BATCHES and begin > end, "the last gradient leaves beside the all-reduces"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, nprocs=4)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

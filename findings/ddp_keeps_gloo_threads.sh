#!/usr/bin/env bash
# destroy_process_group() ends the threads of gloo, unless DistributedDataParallel has run a backward pass: then they
# stay until the process ends, though model and gradients are deleted and collected. One that still drops the tensors of
# the last message waits for the interpreter's lock; about one rank in fifty that exits just then aborts ("terminate
# called without an active exception"), with its training done and saved.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13, gloo.
# Expected: as many threads after destroy_process_group() as before init_process_group(), with and without the wrapper.
# Found: an all-reduce leaves none behind; a backward pass of a wrapped layer leaves three or four.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import gc
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def threads():
    return len(os.listdir("/proc/self/task"))


def main(rank, wrapped, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    before = threads()
    dist.init_process_group("gloo")
    if wrapped:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        del model
    else:
        dist.all_reduce(torch.ones(4))
    gc.collect()
    dist.destroy_process_group()
    gc.collect()
    left = threads() - before
    print(f"torch {torch.__version__}, rank {rank}, wrapped {wrapped}: {left} threads are left", flush=True)
    assert (left >= 3) if wrapped else (left == 0), "DistributedDataParallel lets the group end now"
    os._exit(0)


if __name__ == "__main__":
    for place, wrapped in enumerate((False, True)):
        mp.spawn(main, (wrapped, 29874 + place), nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

#!/usr/bin/env bash
# Over gloo the work of isend and irecv says that it is not completed until somebody calls wait(), however long ago the
# bytes arrived. A loop that computes while `not work.is_completed()`, as it is written for collectives, never ends.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13, gloo.
# Expected: is_completed() turns True once the message has arrived, as it does for all_reduce(async_op=True).
# Found: a second after a message of 4 KiB its bytes are in the receiver's tensor, and is_completed() is False on both
# sides; wait() then returns at once. The same question about an all-reduce is answered with True.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29873", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    message = torch.full((1024,), float(1 - rank))  # ones leave rank 0
    dist.barrier()
    work = dist.irecv(message, 0) if rank else dist.isend(message, 1)
    time.sleep(1)
    arrived, before = bool((message == 1).all()), work.is_completed()
    begin_s = time.perf_counter()
    work.wait()
    waited_s = time.perf_counter() - begin_s
    reduced = dist.all_reduce(torch.ones(1024), async_op=True)
    time.sleep(1)
    print(
        f"torch {torch.__version__}, rank {rank}: bytes are there {arrived}, is_completed() {before}, wait() took "
        f"{1e3 * waited_s:.1f} ms; an all-reduce is_completed() {reduced.is_completed()}", flush=True,
    )
    assert arrived and not before and waited_s < 0.1 and reduced.is_completed(), "messages complete by themselves now"
    reduced.wait()
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter


if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"

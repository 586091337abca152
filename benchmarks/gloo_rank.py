"""A rank of a job on gloo, whose processes are on this machine."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def begin(rank: int, ranks: int, port: int) -> None:
    """Join the other ranks, with one thread."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

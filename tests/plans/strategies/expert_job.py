"""Run a layer of experts with all-to-all on gloo, as torchtitan writes it; print what rank 0 exchanges as JSON.

python expert_job.py RANKS EXPERTS
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing as mp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, INNER, CHOSEN, TOKENS = 16, 24, 2, 32


class Recorded(TorchDispatchMode):
    """It notes all-to-alls in order, with the bytes that this rank hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.found = "forward", list[tuple[str, str, int]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name.startswith("_c10d_functional::all_to_all"):
            name = func._schema.name.split("::")[1]
            self.found.append((self.phase, name.removesuffix("_single"), args[0].numel() * args[0].element_size()))
        return func(*args, **(kwargs or {}))


class Experts(nn.Module):
    """A router, and the experts of this rank."""

    def __init__(self, experts: int, ranks: int) -> None:
        super().__init__()
        self.experts, self.ranks = experts, ranks
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts // ranks, WIDTH, INNER) / 4)
        self.down = nn.Parameter(torch.randn(experts // ranks, INNER, WIDTH) / 4)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        chosen = (torch.arange(len(x) * CHOSEN) % self.experts).view(-1, CHOSEN)  # each expert has as many
        scores = scores.gather(1, chosen)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        group = dist.group.WORLD
        with torch.no_grad():
            theirs = functional.wait_tensor(functional.all_to_all_single(counts, None, None, group))
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = theirs.view(self.ranks, -1).sum(1).tolist()
        rows = functional.all_to_all_single_autograd(x[order // CHOSEN], received, sent, group)
        own = torch.arange(self.experts // self.ranks).repeat(self.ranks).repeat_interleave(theirs)
        sorting = own.argsort(stable=True)
        rows, made = rows[sorting], []
        ends = torch.bincount(own, minlength=self.experts // self.ranks).tolist()
        for piece, up, down in zip(rows.split(ends), self.up, self.down, strict=True):
            made.append(nn.functional.silu(piece @ up) @ down)
        back = torch.empty_like(rows).index_copy(0, sorting, torch.cat(made))
        back = functional.all_to_all_single_autograd(back, sent, received, group)
        weighted = back * scores.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, order // CHOSEN, weighted)


def _rank(rank: int, ranks: int, experts: int, path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    first, layer = nn.Linear(WIDTH, WIDTH), Experts(experts, ranks)
    x = torch.randn(TOKENS, WIDTH)
    with Recorded() as noted:
        loss = layer(first(x)).square().mean()
        noted.phase = "backward"
        loss.backward()
    if rank == 0:
        print(json.dumps(noted.found))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, experts = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (ranks, experts, str(Path(folder) / "store")), nprocs=ranks, start_method="fork")

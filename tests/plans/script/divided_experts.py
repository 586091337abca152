"""Run experts whole and divided over two ranks on gloo, on other tokens for each; print the largest differences.

python divided_experts.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_lm import Experts

from cdmpp.plans.script.carried import divide_experts

RANKS, EXPERTS, WIDTH, TOKENS = 2, 4, 16, 24


def _inputs(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(rank)
    tokens = torch.randn(TOKENS, WIDTH, generator=made, requires_grad=True)
    scores = torch.randn(TOKENS, EXPERTS, generator=made).softmax(-1)
    weights, chosen = scores.topk(2)
    return tokens, chosen, weights


def _rank(rank: int, path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    whole, part = Experts(EXPERTS, WIDTH, 2 * WIDTH), Experts(EXPERTS, WIDTH, 2 * WIDTH)
    part.load_state_dict(whole.state_dict())
    divide_experts(part, dist.group.WORLD)
    inputs = [_inputs(one) for one in range(RANKS)]
    outputs = [whole(*one) for one in inputs]
    torch.stack([one.square().mean() for one in outputs]).mean().backward()
    own = _inputs(rank)
    found = part(*own)
    found.square().mean().backward()
    count, gaps = EXPERTS // RANKS, [float((found - outputs[rank]).abs().max())]
    gaps.append(float((own[0].grad - RANKS * inputs[rank][0].grad).abs().max()))
    for name, value in part.named_parameters():
        expected = getattr(whole, name).grad[rank * count : (rank + 1) * count]
        gaps.append(float((value.grad - expected).abs().max()))
    told = [None] * RANKS
    dist.all_gather_object(told, gaps)
    if rank == 0:
        print(json.dumps({"gaps": told, "size": float(expected.abs().max())}))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (str(Path(folder) / "store"),), nprocs=RANKS, start_method="fork")

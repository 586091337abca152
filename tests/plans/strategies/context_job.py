"""Run PyTorch's own ring attention on gloo in all its ways; print what rank 0 exchanges, and what ranks hold, as JSON.

python context_job.py RANKS

``context_parallel`` itself refuses the kernel of a CPU, so that its templates are called with that kernel.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as own
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

BATCH, HEADS, SIZE, TOKENS = 2, 4, 8, 16
KINDS = {"all_to_all_single": "send_recv", "all_gather_into_tensor": "all_gather"}
"""``permute_tensor`` is an all-to-all in which each rank sends everything to one other."""


class Recorded(TorchDispatchMode):
    """It notes collectives in order, and pairs of queries and keys that each attention looks at."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.phase = ranks, "forward"
        self.storages, self.most = WeakIdKeyDictionary(), dict[str, int]()
        self.sent, self.pairs = list[tuple[str, str, int]](), dict[str, int]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        if name in KINDS:
            times = self.ranks if name.startswith("all_gather") else 1
            self.sent.append((self.phase, KINDS[name], times * args[0].numel() * args[0].element_size()))
        if "flash_attention" in name:
            given = dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | (kwargs or {})
            rows, cols = given["query"].shape[2], given["key"].shape[2]
            many = rows * (rows + 1) // 2 if given.get("is_causal") else rows * cols
            self.pairs[self.phase] = self.pairs.get(self.phase, 0) + many
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, result)):
            if isinstance(one, torch.Tensor):
                self.storages[getattr(one, "elem", one).untyped_storage()] = None  # of what is awaited
        held = sum(one.nbytes() for one in self.storages)
        self.most[self.phase] = max(self.most.get(self.phase, 0), held)
        return result


def _refusal(ranks: int) -> str:
    """What ``context_parallel`` says of attention on a CPU."""
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, SIZE) for _ in range(3))
    try:
        with context_parallel(init_device_mesh("cpu", (ranks,)), buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    except Exception as error:
        return type(error).__name__
    return ""


def _way(
    rank: int, ranks: int, method: str, balanced: bool, causal: bool, dtype: torch.dtype = torch.float32
) -> dict[str, object]:
    """What is sent in both passes, the pairs of each rank, and most bytes of tensors that each holds."""
    own._cp_options.enable_load_balance = balanced
    own.set_rotate_method({"ring": "alltoall", "all_gather": "allgather"}[method])
    torch.manual_seed(rank)
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS // ranks, SIZE, dtype=dtype) for _ in range(3))
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    group = dist.group.WORLD
    with Recorded(ranks) as noted:
        out, sums = own._templated_ring_attention(group, 2, forward, q, k, v, is_causal=causal)
        noted.phase = "backward"
        own._templated_ring_attention_backward(
            group, 2, backward, torch.ones_like(out), "grad_out", q, k, v, out, sums, causal, dropout_p=0.0
        )
    every, held = [None] * ranks, [None] * ranks
    dist.all_gather_object(every, noted.pairs)
    dist.all_gather_object(held, noted.most)
    return {"sent": noted.sent, "pairs": every, "held": held}


def _rank(rank: int, ranks: int, path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    found: dict[str, object] = {"refusal": _refusal(ranks)}
    for method in ("ring", "all_gather"):
        for balanced, causal in ((True, True), (False, True), (False, False)):
            found[f"{method} {balanced} {causal}"] = _way(rank, ranks, method, balanced, causal)
            half = _way(rank, ranks, method, balanced, causal, torch.bfloat16)
            found[f"{method} {balanced} {causal} half"] = {"held": half["held"]}
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (ranks, str(Path(folder) / "store")), nprocs=ranks, start_method="fork")

"""Run a small transformer under ``parallelize_module`` on gloo; print what rank 0 runs and exchanges as JSON.

python parallelized.py KIND RANKS [sequence] [words] [loss] [shared] [tied] [clip] [optimizer=NAME]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[2]))
from plans.strategies.transformers_small import VOCABULARY, Language, tokens

COLUMNS = {
    "fused": ("qkv", "up"),
    "gated": ("attention.wq", "attention.wk", "attention.wv", "layer.gate", "layer.up"),
    "cross": ("q", "k", "v", "wi"),
    "biased": ("q", "k", "v", "up"),
}
ROWS = {
    "fused": ("proj", "down"),
    "gated": ("attention.wo", "layer.down"),
    "cross": ("o", "wo"),
    "biased": ("o", "down"),
}
NORMS = {
    "fused": ("ln_1", "ln_2"), "gated": ("norm_1", "norm_2"), "cross": ("norm_1", "norm_2"), "biased": ("ln_1", "ln_2"),
}  # fmt: skip
KINDS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


class Recorded(TorchDispatchMode):
    """It notes collectives with their bytes, and products with the shapes of their factors, in order."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.phase = ranks, "forward"
        self.collectives: list[tuple[str, str, int]] = []
        self.calls: list[tuple[str, str, list[list[int]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented
        name = func._schema.name.split("::")[1]
        tensors = [one for one in torch.utils._pytree.tree_leaves(args) if isinstance(one, torch.Tensor)]
        if func._schema.name.startswith("_c10d_functional") and name in KINDS:
            size = tensors[0].numel() * tensors[0].element_size()
            size *= self.ranks if KINDS[name] == "all_gather" else 1
            self.collectives.append((self.phase, KINDS[name], size))
        self.calls.append((self.phase, name, [list(one.shape) for one in tensors]))
        return func(*args, **(kwargs or {}))


def plan_of(kind: str, blocks: int, options: set[str]) -> dict[str, Any]:
    """Return what ``parallelize_module`` is given."""
    is_sequence = "sequence" in options
    inner, outer = (Shard(1) if is_sequence else Replicate()), (Shard(1) if is_sequence else Replicate())
    found: dict[str, Any] = {}
    for number in range(blocks):
        at = f"blocks.{number}."
        is_shared = "shared" in options
        read = Replicate() if is_shared else inner
        found |= {at + one: ColwiseParallel(input_layouts=read) for one in COLUMNS[kind]}
        for one in ("attention", "layer") if is_shared else ():
            found[at + one] = PrepareModuleInput(input_layouts=(inner,), desired_input_layouts=(Replicate(),))
        found |= {at + one: RowwiseParallel(output_layouts=outer) for one in ROWS[kind]}
        if kind == "cross":
            found[at + "bias"] = ColwiseParallel()
        if is_sequence:
            found |= {at + one: SequenceParallel(use_local_output=True) for one in NORMS[kind]}
    if "words" in options:
        found["words"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outer)
        out = Shard(-1) if "loss" in options else Replicate()
        found["head"] = ColwiseParallel(input_layouts=inner, output_layouts=out, use_local_output="loss" not in options)
    if is_sequence:
        found["norm"] = SequenceParallel(use_local_output=True)
        if kind == "fused":
            found["places"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    return found


def run(kind: str, ranks: int, options: set[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Language(kind)
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(model, mesh, plan_of(kind, 1, options))
    name = next((one.partition("=")[2] for one in options if one.startswith("optimizer=")), "adamw")
    settings = {"sgd": {}, "adamw": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[name]
    optimizer = (torch.optim.SGD if name == "sgd" else torch.optim.AdamW)(model.parameters(), lr=0.1, **settings)
    target = torch.randint(0, VOCABULARY, tokens().shape)
    for _ in range(2):
        with Recorded(ranks) as noted, loss_parallel() if "loss" in options else torch.enable_grad():
            scores = model(tokens())
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
            noted.phase = "backward"
            loss.backward()
            noted.phase = "update"
            if "clip" in options:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {
        "collectives": noted.collectives,
        "calls": noted.calls,
        "parameters": {
            n: list((p.to_local() if isinstance(p, DTensor) else p).shape) for n, p in model.named_parameters()
        },
        "loss": (loss.full_tensor() if isinstance(loss, DTensor) else loss).item(),
    }


def _rank(rank: int, kind: str, ranks: int, options: set[str], path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    found = run(kind, ranks, options)
    if rank == 0:
        print(json.dumps(found))
    dist.barrier()  # a rank that leaves early closes what another one still reads
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    kind, ranks, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        given = (kind, int(ranks), {*options}, f"{folder}/store")
        torch.multiprocessing.start_processes(_rank, given, int(ranks), start_method="fork")

"""One rank: ``python -m benchmarks.distributed_jobs.rank SCENARIO_JSON FOLDER STEPS``, the rest by its environment."""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.distributed_jobs.networks import make
from benchmarks.distributed_jobs.scenario import Scenario, from_dict
from cdmpp.plans import Plan
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.trace import probe, record

TRACED = 7
SETTLE = 3
"""Steps before anything counts."""


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def ddp(scenario: Scenario) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    model, batch = make(scenario.network)
    if scenario.plan:
        return _planned(model, batch, plan_from_dict(json.loads(scenario.plan)))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=scenario.bucket_mb)
    return _plain(wrapped, batch)


def _planned(model: nn.Module, batch: torch.Tensor, plan: Plan) -> Callable[[], None]:
    """A step under a plan, as ``torch_settings`` says."""
    from torch.nn.parallel import DistributedDataParallel

    assert isinstance(plan.strategy, DDP)
    wrapped = DistributedDataParallel(model, **plan.strategy.torch_arguments())
    fused = True if plan.update == "fused" else None
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4, momentum=0.9, fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        steps = plan.gradient_accumulation_steps
        for number in range(steps):
            with contextlib.nullcontext() if number == steps - 1 else wrapped.no_sync():
                (loss_of(wrapped(batch)) / steps).backward()
        optimizer.step()

    return step


def fsdp(scenario: Scenario) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, batch = make(scenario.network)
    mesh = init_device_mesh("cpu", (scenario.ranks,))
    for block in model:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _plain(model, batch)


def _plain(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()

    return step


def _parts(parameters: list[nn.Parameter], limit_bytes: float) -> list[list[nn.Parameter]]:
    """Last parameters first, as their gradients come; a part is full with ``limit_bytes``."""
    parts: list[list[nn.Parameter]] = [[]]
    for one in reversed(parameters):
        if parts[-1] and sum(4 * p.numel() for p in parts[-1]) + 4 * one.numel() > limit_bytes:
            parts.append([])
        parts[-1].append(one)
    return parts


def server(scenario: Scenario) -> Callable[[], None]:
    """Rank 0 holds the parameters: workers push the gradients of a part, it adds them up, updates, and they pull."""
    model, batch = make(scenario.network)
    parts = _parts(list(model.parameters()), 1e6 * scenario.bucket_mb)
    sizes = [sum(p.numel() for p in part) for part in parts]
    workers = range(1, scenario.ranks)
    if dist.get_rank() == 0:
        weights, inbox = [torch.zeros(n) for n in sizes], [[torch.zeros(n) for n in sizes] for _ in workers]

        def serve() -> None:
            for number, weight in enumerate(weights):
                for worker in workers:
                    dist.recv(inbox[worker - 1][number], src=worker)
                for worker in workers:
                    weight.add_(inbox[worker - 1][number], alpha=-1e-4)
                for worker in workers:
                    dist.send(weight, dst=worker)

        return serve
    flat = [torch.zeros(n) for n in sizes]

    def work() -> None:
        loss_of(model(batch)).backward()
        pushed = []
        for part, whole in zip(parts, flat, strict=True):
            torch.cat([p.grad.view(-1) for p in part], out=whole)
            pushed.append(dist.isend(whole, dst=0))
        for part, whole, push in zip(parts, flat, pushed, strict=True):
            push.wait()
            dist.recv(whole, src=0)
            at = 0
            for p in part:
                p.data.copy_(whole[at : at + p.numel()].view_as(p))
                p.grad, at = None, at + p.numel()

    return work


def reference_s() -> float:
    """Mean of a matrix product of fixed size, rank after rank: does anything else run here, has it slowed down?"""
    x, mean_s = torch.ones(512, 512), 0.0
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            x @ x
            begin_s = time.perf_counter()
            for _ in range(60):
                x @ x
            mean_s = (time.perf_counter() - begin_s) / 60
    return mean_s


def main() -> None:
    scenario, folder, steps = from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = {"ddp": ddp, "fsdp": fsdp, "server": server}[scenario.scheme](scenario)
    for _ in range(SETTLE):
        step()
    before_s = reference_s()
    gc.collect()
    gc.disable()
    dist.barrier()
    half = steps // 2
    with record(folder, wait=half + 1, steps=TRACED) as recorder:
        for _ in range(half + 1 + 1 + TRACED + 2 + half):
            step()
            recorder.step()
    gc.enable()
    kinds = {"ddp": ("all_reduce",), "fsdp": ("all_gather", "all_reduce"), "server": ()}[scenario.scheme]
    if kinds:
        probe(folder, kinds, budget_s=2.5)
    told = {"reference_s": [before_s, reference_s()], "median_s": statistics.median(recorder.steps_s)}
    (folder / f"rank{dist.get_rank()}.told").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

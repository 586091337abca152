"""One rank: ``python -m benchmarks.distributed_jobs.rank SCENARIOS_JSON FOLDER STEPS``, the rest by its environment.

Scenarios of as many ranks on the same links run one after the other, each into a folder of its name.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
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
from cdmpp.plans import Plan, plan_on
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.trace import probe, record
from cdmpp.trace.folder import PROBE

TRACED = 7
SETTLE = 3
"""Steps before anything counts."""
LONG_S = 5.0
"""Seconds of the steps of a scenario that is not traced."""


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def ddp(scenario: Scenario) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    model, batch = make(scenario.network, scenario.batch)
    if scenario.plan:
        return _planned(model, batch, plan_from_dict(json.loads(scenario.plan)))
    if scenario.micro_batches > 1:
        strategy = DDP(bucket_bytes=(int(2**20 * scenario.bucket_mb),))
        return _planned(
            model, batch, plan_on(scenario.ranks, strategy, gradient_accumulation_steps=scenario.micro_batches)
        )
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

    model, batch = make(scenario.network, scenario.batch)
    shards = scenario.ranks // scenario.replicas
    sizes, names = (
        ((shards,), ("shard",)) if scenario.replicas == 1 else ((scenario.replicas, shards), ("replicate", "shard"))
    )
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
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


def reference_s(repeats: int = 60) -> float:
    """Mean of a matrix product of fixed size, rank after rank: does anything else run here, has it slowed down?"""
    x, mean_s = torch.ones(512, 512), 0.0
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            x @ x
            begin_s = time.perf_counter()
            for _ in range(repeats):
                x @ x
            mean_s = (time.perf_counter() - begin_s) / repeats
    return mean_s


def pipeline(scenario: Scenario) -> Callable[[], None]:
    """Stages by 1F1B; replicas of a stage, which have neighbouring numbers, average their gradients by DDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.parallel import DistributedDataParallel

    stages = scenario.ranks // scenario.replicas
    mesh = init_device_mesh("cpu", (stages, scenario.replicas), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    model, batch = make(scenario.network, scenario.batch * scenario.micro_batches)
    ends = (0, *scenario.cuts, len(model))
    module: nn.Module = model[ends[number] : ends[number + 1]]
    if scenario.replicas > 1:
        settings = {"bucket_cap_mb": scenario.bucket_mb, "process_group": mesh.get_group("dp")}
        module = DistributedDataParallel(module, **settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    stage = PipelineStage(module, number, stages, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, scenario.micro_batches, loss_fn=lambda output, _: loss_of(output))
    given = (batch,) if number == 0 else ()
    target = {"target": torch.zeros(len(batch))} if number == stages - 1 else {}

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*given, **target, return_outputs=False)
        optimizer.step()

    return step


SCHEMES = {"ddp": ddp, "fsdp": fsdp, "server": server, "pipeline": pipeline}
KINDS = {
    "ddp": ("all_reduce", "broadcast"),
    "fsdp": ("all_gather", "all_reduce"),
    "server": (),
    "pipeline": ("send_recv",),
}
"""Collectives that are timed apart; gloo runs a reduce-scatter as an all-reduce."""


def timed(step: Callable[[], None], most: int) -> list[float]:
    """Seconds of each of ``most`` steps, or of fewer where they take longer than ``LONG_S`` together; 8 at least."""
    begin_s = time.perf_counter()
    step()
    longest = torch.tensor(time.perf_counter() - begin_s, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    found = []
    for _ in range(max(8, min(most, int(LONG_S / float(longest))))):
        begin_s = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin_s)
    return found


def run(scenario: Scenario, folder: Path, steps: int) -> None:
    """Run one scenario and write what this rank measured."""
    folder.mkdir(parents=True, exist_ok=True)
    step = SCHEMES[scenario.scheme](scenario)
    for _ in range(SETTLE):
        step()
    before_s = reference_s()
    gc.collect()
    gc.disable()
    dist.barrier()
    if scenario.is_traced:
        half = steps // 2
        with record(folder, wait=half + 1, steps=TRACED) as recorder:
            for _ in range(half + 1 + 1 + TRACED + 2 + half):
                step()
                recorder.step()
        steps_s = recorder.steps_s
    else:
        steps_s = timed(step, steps)
    gc.enable()
    told = {"reference_s": [before_s, reference_s()], "median_s": statistics.median(steps_s), "steps_s": steps_s}
    (folder / f"rank{dist.get_rank()}.told").write_text(json.dumps(told))
    dist.barrier()


def main() -> None:
    scenarios = [from_dict(one) for one in json.loads(sys.argv[1])]
    folder, steps = Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for scenario in scenarios:
        run(scenario, folder / scenario.name, steps)
    kinds = tuple(dict.fromkeys(kind for one in scenarios for kind in KINDS[one.scheme]))
    if kinds:
        probe(folder / scenarios[0].name, kinds, budget_s=2.5)
    dist.barrier()
    if kinds and dist.get_rank() == 0:
        for other in scenarios[1:]:
            shutil.copy(folder / scenarios[0].name / PROBE, folder / other.name / PROBE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

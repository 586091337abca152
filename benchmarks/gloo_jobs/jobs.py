"""Jobs of a few ranks: a network, how ranks share its step, and the step itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

MIB = 2**20
WIDTHS = (16, 32, 48, 64, 80, 96, 112)
"""Inputs of each layer of a chain, and its outputs, so that every cut sends something else."""


@dataclass(frozen=True)
class Job:
    """One job; its name says network and settings."""

    name: str
    network: str
    """A key of ``NETWORKS``."""
    scheme: str
    """A key of ``STEPS``."""
    ranks: tuple[int, ...] = (2,)
    """Numbers of ranks with which it was recorded."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the framework is given."""
    batches: int = 1
    """Accumulated before ranks exchange gradients."""
    unused: tuple[str, ...] = ()
    """Names of the parameters that the loss does not depend on."""
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD

    def group(self, ranks: int) -> int:
        """The number of ranks that gather together."""
        return self.stage_ranks(ranks) // self.settings.get("replicas", 1)

    @property
    def stages_per_rank(self) -> int:
        """The number of stages of a rank of a pipeline."""
        return self.settings.get("stages_per_rank", 1)

    def stage_ranks(self, ranks: int) -> int:
        """The number of ranks of one stage of a pipeline."""
        return ranks // self.settings.get("stages", 1)


class Cast(nn.Module):
    """A module of another data type."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.to(self.dtype))


class Unused(nn.Module):
    """Has a layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spare, self.last = (nn.Linear(512, 512, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


class Masked(nn.Module):
    """Has a mask of bools among its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(64, 64).tril().bool())
        self.register_buffer("scale", torch.ones(64), persistent=False)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * self.scale).masked_fill(~self.mask, 0.0)


class Gated(nn.Module):
    """SwiGLU: two layers read one input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 256, bias=False), nn.Linear(64, 256, bias=False)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Blocks(nn.Module):
    """A root with a parameter of its own, and numbered blocks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4))
        self.last = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def _typed(*dtypes: torch.dtype, count: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(Cast(nn.Linear(width, width), dtypes[i % len(dtypes)]) for i in range(count)))


def _norms() -> nn.Sequential:
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
    return nn.Sequential(
        first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 10)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ten layers of 1 MiB": (lambda: nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(10))), (4, 512)),
    "twelve layers of two types": (lambda: _typed(torch.float32, torch.bfloat16, count=12, width=512), (4, 512)),
    "eight layers of four types": (
        lambda: _typed(torch.float32, torch.bfloat16, torch.float16, torch.float64, count=8, width=16), (4, 16),
    ),
    "two batch norms": (_norms, (4, 3, 8, 8)),
    "a mask of bools": (Masked, (4, 64, 64)),
    "a layer without a gradient": (Unused, (4, 512)),
    "a root and four blocks": (Blocks, (4, 64)),
    "SwiGLU": (Gated, (4, 64)),
    "six layers of rising width": (lambda: nn.Sequential(*map(nn.Linear, WIDTHS, WIDTHS[1:])), (16, WIDTHS[0])),
}  # fmt: skip
"""Name -> makes the network, and the shape of its input."""


def trained(module: nn.Module, x: torch.Tensor, batches: int, last: Callable[[bool], Any] | None = None) -> None:
    """Forward and backward passes; ``last`` gives the context of each batch, and knows whether it is the last."""
    for number in range(batches):
        with last(number == batches - 1) if last else contextlib.nullcontext():
            with record_function("forward"):
                loss = module(x).float().square().mean()
            with record_function("backward"):
                loss.backward()


def ddp(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    module = DistributedDataParallel(model, **job.settings)
    optimizer = job.optimizer(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        trained(module, x, job.batches, lambda is_last: contextlib.nullcontext() if is_last else module.no_sync())
        optimizer.step()

    return step


def fsdp(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks, settings = dist.get_world_size(), dict(job.settings)
    scatters_each = settings.pop("scatter_each_batch", False)
    if replicas := settings.pop("replicas", 0):
        mesh = init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    optimizer = job.optimizer(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()

        def last(is_last: bool) -> Any:
            model.set_requires_gradient_sync(is_last or scatters_each)
            return contextlib.nullcontext()

        trained(model, x, job.batches, last)
        optimizer.step()

    return step


def zero(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    module = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), optimizer_class=job.optimizer, lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        trained(module, x, job.batches, lambda is_last: contextlib.nullcontext() if is_last else module.no_sync())
        optimizer.step()

    return step


def pipelined(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Two stages under 1F1B, each with its half of the blocks sharded over half of the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stages = job.settings["stages"]
    mesh = init_device_mesh("cpu", (stages, dist.get_world_size() // stages), mesh_dim_names=("pp", "dp"))
    stage = mesh.get_local_rank("pp")
    half = len(model.blocks) // stages
    model.blocks = model.blocks[stage * half : (stage + 1) * half]
    if stage > 0:
        model.first = nn.Identity()
    if stage < stages - 1:
        model.last = nn.Identity()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    optimizer = job.optimizer(model.parameters(), lr=1e-3)
    made = PipelineStage(model, stage, stages, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(made, job.batches, loss_fn=lambda output, target: output.square().mean())

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*((x,) if stage == 0 else ()), **({} if stage == 0 else {"target": torch.zeros(len(x), 5)}))
        optimizer.step()

    return step


def pipeline(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Stages of a chain of layers; replicas of a stage, which have neighbouring numbers, run under DDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.nn.parallel import DistributedDataParallel

    ends, name, count = (0, *job.settings["cuts"], len(model)), job.settings["schedule"], job.stages_per_rank
    stages, ranks = len(ends) - 1, (len(ends) - 1) // count
    mesh = init_device_mesh("cpu", (ranks, dist.get_world_size() // ranks), mesh_dim_names=("pp", "dp"))
    place = mesh.get_local_rank("pp")
    numbers = (place, stages - 1 - place) if name in ("zbvzerobubble", "dualpipev") else range(place, stages, ranks)
    made, parameters = [], []
    for number in numbers:
        module: nn.Module = model[ends[number] : ends[number + 1]]
        parameters += module.parameters()
        if dist.get_world_size() > ranks:
            module = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
        made.append(PipelineStage(module, number, stages, torch.device("cpu"), group=mesh.get_group("pp")))
    optimizer, is_single = job.optimizer(parameters, lr=1e-3), name in ("gpipe", "1f1b")
    schedule = get_schedule_class(name)(
        made[0] if is_single else made, job.batches, loss_fn=lambda output, _: output.square().mean()
    )
    given = (x,) if 0 in numbers else ()
    target = {"target": torch.zeros(len(x))} if stages - 1 in numbers else {}

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*given, **target)
        optimizer.step()

    return step


def tensor_parallel(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = {name: ColwiseParallel() for name in job.settings["columns"]}
    parallelize_module(model, mesh, {**columns, job.settings["rows"]: RowwiseParallel()})
    optimizer = job.optimizer(model.parameters(), lr=1e-3)
    x.requires_grad_(job.settings.get("input_needs_gradient", True))

    def step() -> None:
        optimizer.zero_grad()
        trained(model, x, 1)
        optimizer.step()

    return step


def server(job: Job, model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Parts of gradients go to server after server, and their sums back: what ``ps`` says, of plain messages."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    servers, most = job.settings["servers"] or ranks, job.settings["part_bytes"]

    def step() -> None:
        model.zero_grad()
        trained(model, x, 1)
        number = 0
        for parameter in reversed(list(model.parameters())):
            count = -(-4 * parameter.numel() // most)
            for part in parameter.grad.view(-1).tensor_split(count):
                home, number = number % servers, number + 1
                if rank == home:
                    arrived = torch.empty_like(part)
                    for other in (one for one in range(ranks) if one != home):
                        dist.recv(arrived, src=other)
                        part.add_(arrived)
                    for other in (one for one in range(ranks) if one != home):
                        dist.send(part, dst=other)
                else:
                    dist.send(part.contiguous(), dst=home)
                    dist.recv(part, src=home)

    return step


STEPS = {
    "ddp": ddp, "zero": zero, "fsdp": fsdp, "pipelined fsdp": pipelined, "pipeline": pipeline, "tp": tensor_parallel,
    "ps": server,
}  # fmt: skip

_TEN, _TWO, _NORMS, _ROOT, _CHAIN = (
    "ten layers of 1 MiB", "twelve layers of two types", "two batch norms", "a root and four blocks",
    "six layers of rising width",
)  # fmt: skip
_UNUSED = {"find_unused_parameters": True}
_STATIC = {"static_graph": True}
JOBS = (
    Job("ddp", _TEN, "ddp", (2, 3, 4)),
    Job("ddp, bucket_cap_mb=25", _TEN, "ddp", (2,), {"bucket_cap_mb": 25}),
    Job("ddp, bucket_cap_mb=3", _TEN, "ddp", (2,), {"bucket_cap_mb": 3}),
    Job("ddp, bucket_cap_mb_list=[2, 1, 4]", _TEN, "ddp", (2,), {"bucket_cap_mb_list": [2, 1, 4]}),
    Job("ddp, gradient_as_bucket_view", _TEN, "ddp", (2,), {"gradient_as_bucket_view": True}),
    Job("ddp, find_unused_parameters", _TEN, "ddp", (2, 4), _UNUSED),
    Job("ddp, find_unused_parameters, bucket_cap_mb=3", _TEN, "ddp", (2,), {**_UNUSED, "bucket_cap_mb": 3}),
    Job("ddp, find_unused_parameters", "a layer without a gradient", "ddp", (2,), _UNUSED,
        unused=("spare.weight",)),
    Job("ddp, static_graph", _TEN, "ddp", (2,), _STATIC),
    Job("ddp, static_graph, find_unused_parameters", _TEN, "ddp", (2,), {**_STATIC, **_UNUSED}),
    Job("ddp", _TWO, "ddp", (2, 4)),
    Job("ddp, find_unused_parameters", _TWO, "ddp", (2,), _UNUSED),
    Job("ddp, static_graph", _TWO, "ddp", (2,), _STATIC),
    Job("ddp, bucket_cap_mb=1", _TWO, "ddp", (2,), {"bucket_cap_mb": 1}),
    Job("ddp", "eight layers of four types", "ddp", (2,)),
    Job("ddp", _NORMS, "ddp", (2, 3, 4)),
    Job("ddp, 3 batches", _NORMS, "ddp", (2,), batches=3),
    Job("ddp, forward_sync_buffers=False", _NORMS, "ddp", (2,), {"forward_sync_buffers": False}),
    Job("ddp, find_unused_parameters, 2 batches", _NORMS, "ddp", (2,), _UNUSED, batches=2),
    Job("ddp", "a mask of bools", "ddp", (2,)),
    Job("ddp, 2 batches", _TEN, "ddp", (2,), batches=2),
    Job("fsdp", _ROOT, "fsdp", (2, 3, 4)),
    Job("fsdp, reshard_after_forward=False", _ROOT, "fsdp", (2,), {"reshard_after_forward": False}),
    Job("fsdp", _NORMS, "fsdp", (3,)),
    Job("fsdp, 2 batches", _ROOT, "fsdp", (2,), batches=2),
    Job("fsdp, 2 batches, reshard_after_forward=False", _ROOT, "fsdp", (2,), {"reshard_after_forward": False}, 2),
    Job("fsdp, 2 batches, each scatters", _ROOT, "fsdp", (2,), {"scatter_each_batch": True}, 2),
    Job("fsdp, 2 stages, 4 micro-batches", _ROOT, "pipelined fsdp", (4,), {"stages": 2}, 4),
    Job("hsdp, 2 replicas", _ROOT, "fsdp", (4, 6), {"replicas": 2}),
    Job("hsdp, 2 replicas, 2 batches", _ROOT, "fsdp", (4,), {"replicas": 2}, 2),
    Job("hsdp, 3 replicas, reshard_after_forward=False", _ROOT, "fsdp", (6,),
        {"replicas": 3, "reshard_after_forward": False}),
    Job("zero", _ROOT, "zero", (2, 3, 4)),
    Job("zero", _NORMS, "zero", (2,)),
    Job("zero, 2 batches", _TEN, "zero", (2,), batches=2),
    Job("gpipe, 8 micro-batches", _CHAIN, "pipeline", (2,), {"schedule": "gpipe", "cuts": (3,)}, 8),
    Job("gpipe, 4 uneven stages, 8 micro-batches", _CHAIN, "pipeline", (4,),
        {"schedule": "gpipe", "cuts": (1, 2, 5)}, 8),
    Job("1f1b, 8 micro-batches", _CHAIN, "pipeline", (2,), {"schedule": "1f1b", "cuts": (4,)}, 8),
    Job("1f1b, 3 stages, 4 micro-batches", _CHAIN, "pipeline", (3,), {"schedule": "1f1b", "cuts": (2, 4)}, 4),
    Job("1f1b, 4 uneven stages, 8 micro-batches", _CHAIN, "pipeline", (4,), {"schedule": "1f1b", "cuts": (1, 2, 5)}, 8),
    Job("1f1b, 2 stages, 2 replicas, 4 micro-batches", _CHAIN, "pipeline", (4,), {"schedule": "1f1b", "cuts": (3,)}, 4),
    Job("interleaved 1f1b, 2 ranks of 2 stages, 4 micro-batches", _CHAIN, "pipeline", (2,),
        {"schedule": "interleaved1f1b", "stages_per_rank": 2, "cuts": (1, 3, 5)}, 4),
    Job("interleaved 1f1b, 3 ranks of 2 stages, 8 micro-batches", _CHAIN, "pipeline", (3,),
        {"schedule": "interleaved1f1b", "stages_per_rank": 2, "cuts": (1, 2, 3, 4, 5)}, 8),
    Job("interleaved 1f1b, 2 ranks of 2 stages, 2 replicas, 8 micro-batches", _CHAIN, "pipeline", (4,),
        {"schedule": "interleaved1f1b", "stages_per_rank": 2, "cuts": (1, 3, 5)}, 8),
    Job("zero bubble (ZB-H1), 4 uneven stages, 8 micro-batches", _CHAIN, "pipeline", (4,),
        {"schedule": "interleavedzerobubble", "stages_per_rank": 1, "cuts": (1, 2, 5)}, 8),
    Job("interleaved zero bubble, 2 ranks of 2 stages, 8 micro-batches", _CHAIN, "pipeline", (2,),
        {"schedule": "interleavedzerobubble", "stages_per_rank": 2, "cuts": (1, 3, 5)}, 8),
    Job("zbv, 3 ranks of 2 stages, 8 micro-batches", _CHAIN, "pipeline", (3,),
        {"schedule": "zbvzerobubble", "stages_per_rank": 2, "cuts": (1, 2, 3, 4, 5)}, 8),
    Job("dualpipev, 2 ranks of 2 stages, 8 micro-batches", _CHAIN, "pipeline", (2,),
        {"schedule": "dualpipev", "stages_per_rank": 2, "cuts": (1, 3, 5)}, 8),
    Job("tp", "SwiGLU", "tp", (2, 4), {"columns": ["gate", "up"], "rows": "down"}),
    Job("tp, input without gradient", "SwiGLU", "tp", (2,),
        {"columns": ["gate", "up"], "rows": "down", "input_needs_gradient": False}),
    Job("ps", _TEN, "ps", (2, 3, 4), {"servers": 0, "part_bytes": 4 * MIB}),
    Job("ps, 1 server, parts of 300 kB", _TEN, "ps", (3,), {"servers": 1, "part_bytes": 300_000}),
)  # fmt: skip

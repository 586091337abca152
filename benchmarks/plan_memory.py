"""Peak memory of real jobs beside that of their plans: ``python -m benchmarks.plan_memory``.

Three small networks, AdamW, on 2 to 4 processes of this machine with gloo, three steps: the bytes of the
storages of all tensors are counted after each operator. Writes the part ``jobs`` of
``docs/results/plan-memory.md``.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from benchmarks.gloo_jobs.jobs import STEPS, Job
from benchmarks.gloo_jobs.predicted import plan_of
from benchmarks.gloo_rank import begin
from benchmarks.publish.markdown import replace_part, table
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory import Memory, MemoryParts
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import parts_of
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_prediction import gradients_of, modules_of
from cdmpp.steps.step_graph import Op, RankGraph

PAGE = Path(__file__).parents[1] / "docs" / "results" / "plan-memory.md"
HEAD = """The most bytes of tensors that a rank of a small job on gloo holds in three steps, storages counted after
each operator, and the peak that is estimated for the same plan without a run. Of ranks that hold alike the one that
holds most counts; pipelines have 4 micro-batches. Buffers of gloo are none of them. *Largest part*: of the estimate."""
_PORT = 29900


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.three(x).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.mix, self.between = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.before(x))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class Transformer(nn.Module):
    """Returns its loss: the next token of each."""

    def __init__(self, width: int = 256, vocabulary: int = 4096) -> None:
        super().__init__()
        self.first = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.last(self.norm(x)), tokens)

    @staticmethod
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())


class Stage(nn.Module):
    """One of two stages of a network, which leaves the loss to the schedule."""

    def __init__(self, whole: Transformer | Segmenter, number: int) -> None:
        super().__init__()
        self.first = nn.Identity() if number else whole.first
        self.blocks = whole.blocks[2:] if number else whole.blocks[:2]
        self.last = nn.Sequential(whole.norm, whole.last) if number else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def pipeline(job: Job, model: Transformer | Segmenter, example: torch.Tensor) -> Callable[[], None]:
    """The rank's stage of the network; each micro-batch is as large as ``example``."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    number, many = dist.get_rank(), torch.cat([example] * job.batches)
    module = Stage(model, number)
    optimizer = job.optimizer(module.parameters(), lr=1e-3)
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[job.settings["schedule"]]
    schedule = kind(
        PipelineStage(module, number, 2, torch.device("cpu")),
        job.batches,
        loss_fn=type(model).loss,
    )
    given, target = ((), {"target": many}) if number else ((many,), {})

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*given, **target, return_outputs=job.settings["return_outputs"])
        optimizer.step()

    return step


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm_two(self.two(torch.relu(self.norm_one(self.one(x))))))


class Convolutions(nn.Module):
    """Returns its loss."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(4))
        self.last = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(images)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3))).square().mean()


class Segmenter(nn.Module):
    """Enlarges what its last layer makes; returns its loss, as if all were of one class."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(4))
        self.norm, self.last = nn.Conv2d(width, 16, 1), nn.Upsample(scale_factor=8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(images)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.last(self.norm(x)), images)

    @staticmethod
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return functional.cross_entropy(output, torch.zeros(len(output), *output.shape[2:], dtype=torch.long))


NETWORKS = {
    "transformer": (Transformer, lambda: torch.randint(0, 4096, (4, 128))),
    "convolutions": (Convolutions, lambda: torch.randn(4, 3, 16, 16)),
    "segmenter": (Segmenter, lambda: torch.randn(4, 3, 16, 16)),
}


def _jobs() -> tuple[Job, ...]:
    adamw = torch.optim.AdamW
    return tuple(
        Job(name, network, scheme, ranks, settings, batches, optimizer=adamw)
        for network in ("transformer", "convolutions")
        for name, scheme, ranks, settings, batches in (
            ("ddp", "ddp", (2,), {}, 1),
            ("ddp, 2 batches", "ddp", (2,), {}, 2),
            ("zero", "zero", (2,), {}, 1),
            ("fsdp", "fsdp", (2,), {}, 1),
            ("fsdp, reshard_after_forward=False", "fsdp", (2,), {"reshard_after_forward": False}, 1),
            ("hsdp, 2 replicas", "fsdp", (4,), {"replicas": 2}, 1),
        )
    ) + tuple(
        Job(name, network, PIPELINE, (2,), {"schedule": schedule, "return_outputs": returns}, 4, optimizer=adamw)
        for network in ("transformer", "segmenter")
        for schedule in ("1f1b", "gpipe")
        for returns in (True, False)
        for name in (f"pipeline, {schedule}, return_outputs={returns}",)
    )


PIPELINE = "stages of a network"
"""Scheme of the jobs whose ranks hold a stage each."""
JOBS = _jobs()


class Watch(TorchDispatchMode):
    """The most bytes of the storages of all tensors that are there after any operator."""

    def __init__(self) -> None:
        super().__init__()
        self.storages, self.most = WeakIdKeyDictionary(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, result)):
            if isinstance(one, torch.Tensor):
                self.storages[getattr(one, "_local_tensor", one).untyped_storage()] = None
        self.most = max(self.most, sum(one.nbytes() for one in self.storages))
        return result


def measured_bytes(job: Job, ranks: int, port: int) -> list[int]:
    """Run the job; the most that each rank held."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (JOBS.index(job), ranks, port, folder), nprocs=ranks)
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(ranks)]


def _rank(rank: int, number: int, ranks: int, port: int, folder: str) -> None:
    begin(rank, ranks, port)
    torch.manual_seed(0)
    job = JOBS[number]
    make, example = NETWORKS[job.network]
    with Watch() as watch:
        step = (pipeline if job.scheme == PIPELINE else STEPS[job.scheme])(job, make(), example())
        for _ in range(3):
            step()
            gc.collect()  # steps leave cycles behind, with what they hold
    (Path(folder) / str(rank)).write_text(json.dumps(watch.most))
    dist.barrier()
    dist.destroy_process_group()


def estimated(job: Job, ranks: int) -> list[MemoryParts]:
    """What a rank of each stage of the plan of the job is estimated to hold."""
    make, example = NETWORKS[job.network]
    workload = Workload(
        make(),
        (example(),),
        loss=lambda output: output.float().square().mean(),
        optimizer="adamw",
        mode="training_step",
    )
    step = read_step(workload, "cpu").step
    ops = tuple(
        Op(
            one.call.name, one.phase, 1e-3, is_recomputed=one.is_recomputed, output_bytes=one.call.output_bytes,
            inputs=one.call.inputs, saved_bytes=one.call.saved_bytes, result_bytes=one.call.result_bytes,
            forward=one.call.forward, workspace_bytes=one.call.workspace_bytes,
        )
        for one in step.calls
    )  # fmt: skip
    rank = RankGraph(0, ops, gradients_of(step), modules_of(step), buffers=step.buffers)
    if job.scheme != PIPELINE:
        return [Memory(step.memory, rank).parts(plan_of(job, ranks))]
    stages = Pipeline(micro_batches=job.batches, cuts=("blocks.2",), **job.settings)
    plan, work = Plan(DDP(), ParallelDegrees(pp=ranks), model_parallel=(stages,)), RankWork(rank, memory=step.memory)
    return parts_of(work, plan, lower_work(work, plan, fitted(AlphaBeta(1e-4, 1e-9), ranks)), is_gpu=False)


def main() -> None:
    rows, ratios = [], []
    for job in JOBS:
        for ranks in job.ranks:
            each, stages = measured_bytes(job, ranks, _PORT + len(rows)), estimated(job, ranks)
            for number, parts in enumerate(stages):
                held = max(each) if len(stages) == 1 else each[number]
                ratios.append(parts.peak_bytes / held)
                sizes = (f"{held / 1e6:.1f}", f"{parts.peak_bytes / 1e6:.1f}", f"{ratios[-1]:.3f}")
                name = job.name if len(stages) == 1 else f"{job.name}, stage {number}"
                rows.append((job.network, name, str(ranks), *sizes, parts.largest))
                print(*rows[-1], parts, flush=True)
            _write(rows, ratios)


def _write(rows: list[tuple[str, ...]], ratios: list[float]) -> None:
    summary = (
        f"{len(rows)} ranks of {len(JOBS)} jobs: estimate over measured from {min(ratios):.3f} to {max(ratios):.3f}"
    )
    heads = ["network", "plan", "ranks", "measured MB", "estimated MB", "ratio", "largest part"]
    lines = [
        "## Small jobs, run here",
        "",
        *HEAD.splitlines(),
        "",
        f"{summary} (torch {torch.__version__}).",
        "",
        *table(heads, rows),
    ]
    replace_part(PAGE, "jobs", "\n".join(lines))


if __name__ == "__main__":
    main()

"""Small decoders under tensor, sharded, data and pipeline parallel plans on gloo: the jobs of ``tensor_runs``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.carried import cut_model
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor

WIDTH, HEADS, TOKENS, WORDS, BATCH = 512, 8, 128, 2048, 4
AXES = ("pp", "dp_replicate", "dp_shard", "tp")


class Case(NamedTuple):
    """A plan, and the decoder that runs under it; ``BATCH`` examples are a micro-batch of a replica."""

    name: str
    tp: int = 1
    shards: int = 1
    replicas: int = 1
    is_sequence: bool = False
    hidden: int = 4 * WIDTH
    """Features of the layers between."""
    schedule: str = ""
    """A pipeline of two ranks runs it; empty: there is none."""
    stages: int = 1
    """Stages of a rank."""
    micro_batches: int = 1

    @property
    def pp(self) -> int:
        """Ranks of the pipeline."""
        return 2 if self.schedule else 1

    @property
    def ranks(self) -> int:
        """The job has so many ranks."""
        return self.pp * self.replicas * self.shards * self.tp

    @property
    def blocks(self) -> int:
        """Blocks of the decoder."""
        return 4 if self.schedule else 2

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks along each of ``AXES``."""
        return self.pp, self.replicas, self.shards, self.tp

    @property
    def cuts(self) -> tuple[str, ...]:
        """Blocks with which stages begin."""
        count = self.pp * self.stages
        return tuple(f"blocks.{self.blocks // count * stage}" for stage in range(1, count))


CASES = (
    Case("tp 2", tp=2),
    Case("sp 2", tp=2, is_sequence=True),
    Case("tp 2, narrow layers", tp=2, hidden=WIDTH),
    Case("sp 2, narrow layers", tp=2, is_sequence=True, hidden=WIDTH),
    Case("tp 4", tp=4),
    Case("sp 4", tp=4, is_sequence=True),
    Case("fsdp 2 + tp 2", tp=2, shards=2),
    Case("fsdp 2 + sp 2", tp=2, shards=2, is_sequence=True),
    Case("tp 2, wide layers", tp=2, hidden=8 * WIDTH),
    Case("sp 2, wide layers", tp=2, is_sequence=True, hidden=8 * WIDTH),
    Case("ddp 2 + tp 2", tp=2, replicas=2),
    Case("ddp 2 + sp 2", tp=2, replicas=2, is_sequence=True),
    Case("fsdp 2 + tp 2, narrow layers", tp=2, shards=2, hidden=WIDTH),
    Case("1f1b, 4 micro-batches", schedule="1f1b", micro_batches=4),
    Case("interleaved, 4 micro-batches", schedule="interleaved1f1b", stages=2, micro_batches=4),
    Case("interleaved, 8 micro-batches", schedule="interleaved1f1b", stages=2, micro_batches=8),
    Case("1f1b + tp 2", tp=2, schedule="1f1b", micro_batches=4),
    Case("1f1b + sp 2", tp=2, is_sequence=True, schedule="1f1b", micro_batches=4),
    Case("interleaved + tp 2", tp=2, schedule="interleaved1f1b", stages=2, micro_batches=4),
    Case("interleaved + sp 2", tp=2, is_sequence=True, schedule="interleaved1f1b", stages=2, micro_batches=4),
)


class Block(nn.Module):
    """Attention, and a layer of SwiGLU."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.size = width // HEADS
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as much as is given."""
        y = self.norm_1(x)
        made = (one(y) for one in (self.q, self.k, self.v))
        q, k, v = (one.unflatten(-1, (-1, self.size)).transpose(1, 2) for one in made)
        x = x + self.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Tokens in, a score for each word out."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(hidden, WIDTH) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plan_of(case: Case) -> Plan:
    """Return the plan of a case."""
    dividing: list[Any] = [Tensor(sequence_parallel=case.is_sequence)] if case.tp > 1 else []
    if case.schedule:
        dividing.append(Pipeline(case.schedule, case.micro_batches, case.cuts, stages_per_rank=case.stages))
    degrees = ParallelDegrees(pp=case.pp, dp_replicate=case.replicas, dp_shard=case.shards, tp=case.tp)
    return Plan(STRATEGIES["fsdp" if case.shards > 1 else "ddp"](), degrees, model_parallel=tuple(dividing))


def loss_of(scores: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def parallelized(case: Case, model: nn.Module, mesh: Any) -> nn.Module:
    """Divide a decoder, or a stage of one, as the plan of the case does."""
    if case.tp > 1:
        between = Shard(1) if case.is_sequence else Replicate()
        styles: dict[str, Any] = {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
        }
        for number in range(case.blocks):
            at = f"blocks.{number}."
            styles |= {at + one: ColwiseParallel(input_layouts=between) for one in ("q", "k", "v", "gate", "up")}
            styles |= {at + one: RowwiseParallel(output_layouts=between) for one in ("o", "down")}
            norms = (at + "norm_1", at + "norm_2", "norm") if case.is_sequence else ()
            styles |= {one: SequenceParallel(use_local_output=True) for one in norms}
        names = {name for name, _ in model.named_modules()}
        parallelize_module(model, mesh["tp"], {name: one for name, one in styles.items() if name in names})
    if case.shards > 1:
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh["dp_shard"])
        fully_shard(model, mesh=mesh["dp_shard"])
    return model


class Step:
    """A training step: passes, then the update."""

    def __init__(self, passes: Callable[[], Any], parameters: list[nn.Parameter], is_divided: bool) -> None:
        self.run_passes, self.is_divided = passes, is_divided
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=False)

    def passes(self) -> None:
        """Run both passes."""
        self.optimizer.zero_grad()
        with loss_parallel() if self.is_divided else contextlib.nullcontext():
            self.run_passes()

    def update(self) -> None:
        """Update all parameters."""
        self.optimizer.step()

    def __call__(self) -> None:
        """Run the whole step."""
        self.passes()
        self.update()


def step_of(case: Case, mesh: Any) -> Step:
    """Return the step of a rank of the job."""
    torch.manual_seed(0)
    model = Decoder(case.hidden, case.blocks)
    tokens, target = torch.randint(0, WORDS, (2, BATCH * case.micro_batches, TOKENS))
    if case.schedule:
        return _pipelined(case, model, mesh, tokens, target)
    model = parallelized(case, model, mesh)
    if case.replicas > 1:
        model = DistributedDataParallel(model, device_mesh=mesh["dp_replicate"])
    return Step(lambda: loss_of(model(tokens), target).backward(), [*model.parameters()], case.tp > 1)


def _pipelined(case: Case, model: Decoder, mesh: Any, tokens: torch.Tensor, target: torch.Tensor) -> Step:
    parts, group = cut_model(model, case.cuts), mesh.get_group("pp")
    own = {number: parallelized(case, parts[number], mesh) for number in range(group.rank(), len(parts), case.pp)}
    stages = [PipelineStage(one, at, len(parts), torch.device("cpu"), group=group) for at, one in own.items()]
    kind = get_schedule_class(case.schedule)
    schedule = kind(stages[0] if kind is Schedule1F1B else stages, case.micro_batches, loss_fn=loss_of)
    given = (tokens,) if stages[0].is_first else ()
    aim = target if stages[-1].is_last else None
    parameters = [value for one in own.values() for value in one.parameters()]
    return Step(lambda: schedule.step(*given, target=aim, return_outputs=False), parameters, case.tp > 1)

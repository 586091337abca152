"""Real steps of tensor parallel plans on gloo here, beside what is predicted for them.

    python -m benchmarks.plans.tensor_runs [--steps 8]

Each case runs a decoder of two blocks under ``parallelize_module``. Predicted is the sum of three figures that are
timed apart, without a step of the job: the operators of the divided graph, run by as many processes at the same time
and without exchanges; each collective of the lowered plan by itself, in groups as large as those of the plan; and what
the host takes more for DTensors, which hardly depends on sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from cdmpp import devices
from cdmpp.collectives.topology import topology_of
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.tensor import Tensor

WIDTH, HEADS, TOKENS, WORDS, BATCH, BLOCKS = 512, 8, 128, 2048, 4, 2


class Case(NamedTuple):
    """A plan, and how wide the layers between are."""

    name: str
    tp: int
    shards: int
    is_sequence: bool
    hidden: int = 4 * WIDTH

    @property
    def ranks(self) -> int:
        """The job has so many ranks."""
        return self.tp * self.shards


CASES = (
    Case("tp 2", 2, 1, False),
    Case("sp 2", 2, 1, True),
    Case("tp 2, narrow layers", 2, 1, False, WIDTH),
    Case("sp 2, narrow layers", 2, 1, True, WIDTH),
    Case("tp 4", 4, 1, False),
    Case("sp 4", 4, 1, True),
    Case("fsdp 2 + tp 2", 2, 2, False),
    Case("fsdp 2 + sp 2", 2, 2, True),
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
        q, k, v = (one.view(*one.shape[:2], -1, self.size).transpose(1, 2) for one in made)
        x = x + self.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Tokens in, a score for each word out."""

    def __init__(self, hidden: int, width: int = WIDTH, words: int = WORDS) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(hidden, width) for _ in range(BLOCKS))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plan_of(case: Case) -> Plan:
    """Return the plan of a case."""
    tensor = Tensor(sequence_parallel=case.is_sequence)
    degrees = ParallelDegrees(tp=case.tp, dp_shard=case.shards)
    return Plan(STRATEGIES["fsdp" if case.shards > 1 else "ddp"](), degrees, model_parallel=(tensor,))


def median_s(run: Callable[[], Any], steps: int) -> float:
    """Return the median seconds of ``run`` over some turns, behind a barrier each, after two to warm up."""
    found = []
    for number in range(steps + 2):
        dist.barrier()
        begin = time.perf_counter()
        run()
        if number > 1:
            found.append(time.perf_counter() - begin)
    return statistics.median(found)


def measured_s(case: Case, steps: int) -> float:
    """Return the seconds of a real step."""
    mesh = init_device_mesh("cpu", (case.shards, case.tp), mesh_dim_names=("dp_shard", "tp"))
    torch.manual_seed(0)
    model = parallelized(case, Decoder(case.hidden), mesh)
    return step_s(model, torch.randint(0, WORDS, (2, BATCH, TOKENS)), True, steps)


def dispatched_s(case: Case, steps: int) -> float:
    """Return the seconds that the host takes more for a step of DTensors.

    A decoder of the same layers, too small for its kernels to count, under the same styles, on meshes of one rank.
    """
    mesh = init_device_mesh("cpu", (case.ranks, 1, 1), mesh_dim_names=("others", "dp_shard", "tp"))
    tokens = torch.randint(0, 16, (2, 1, 8))
    plain = step_s(Decoder(16, 16, 16), tokens, False, 4 * steps)
    return step_s(parallelized(case, Decoder(16, 16, 16), mesh), tokens, True, 4 * steps) - plain


def parallelized(case: Case, model: Decoder, mesh: Any) -> Decoder:
    """Divide a model as the plan of the case does."""
    between = Shard(1) if case.is_sequence else Replicate()
    styles: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for number in range(BLOCKS):
        at = f"blocks.{number}."
        styles |= {at + one: ColwiseParallel(input_layouts=between) for one in ("q", "k", "v", "gate", "up")}
        styles |= {at + one: RowwiseParallel(output_layouts=between) for one in ("o", "down")}
        norms = (at + "norm_1", at + "norm_2", "norm") if case.is_sequence else ()
        styles |= {one: SequenceParallel(use_local_output=True) for one in norms}
    parallelize_module(model, mesh["tp"], styles)
    if case.shards > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp_shard"])
        fully_shard(model, mesh=mesh["dp_shard"])
    return model


def step_s(model: nn.Module, batch: torch.Tensor, is_divided: bool, steps: int) -> float:
    """Return the median seconds of a training step; ``batch`` has tokens and targets."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    tokens, target = batch

    def step() -> None:
        with loss_parallel() if is_divided else contextlib.nullcontext():
            functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return median_s(step, steps)


def computed_s(case: Case, steps: int) -> float:
    """Return the seconds of the operators of the divided graph, with the update and without exchanges."""
    from cdmpp.network.eager.step import export_step

    tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
    step = export_step(Workload(Decoder(case.hidden), tokens, mode="training_step"), "cpu")
    divided = Tensor(sequence_parallel=case.is_sequence).divide(step.exported, case.tp)
    given, inputs, parameters = [], iter(step.exported.example_inputs[0]), []
    for node in divided.graph.nodes:
        if node.op == "placeholder":
            is_input = node.name not in divided.graph_signature.inputs_to_parameters
            value = next(inputs) if is_input else nn.Parameter(0.02 * torch.randn(node.meta["val"].shape))
            given.append(value)
            parameters += [] if is_input else [value]
    module = torch.fx.GraphModule(divided.graph_module, divided.graph)
    each = [nn.Parameter(one[: max(1, len(one) // case.shards)].detach().clone()) for one in parameters]
    optimizer = torch.optim.AdamW(each, lr=1e-4, foreach=False)

    def run() -> None:
        module(*given)[0].backward()
        for one, own in zip(parameters, each, strict=True):
            own.grad = one.grad[: len(own)]  # type: ignore[index]
            one.grad = None
        optimizer.step()

    return median_s(run, steps)


def exchanged_s(case: Case, steps: int) -> tuple[float, int]:
    """Return the seconds of all collectives of a rank in one step, each timed by itself, and their number."""
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
    source = PredictedSource(Workload(Decoder(case.hidden), tokens, optimizer="adamw-for-loop"), devices.get("t4"))
    plan = plan_of(case)
    made = lower(source, plan, topology_of(case.ranks, "t4", link="pcie4"), BATCH * case.shards, fold=False)
    mesh = init_device_mesh("cpu", (case.shards, case.tp), mesh_dim_names=("dp_shard", "tp"))
    known, total, count = dict[tuple[str, int, str], float](), 0.0, 0
    for one in made.graph.exchanges:
        if 0 not in one.ranks:
            continue
        axis = "tp" if 1 in one.ranks and case.tp > 1 else "dp_shard"
        key = one.kind, one.bytes, axis
        if key not in known:
            group, many = mesh.get_group(axis), mesh[axis].size()
            known[key] = median_s(_collective(one.kind, one.bytes, many, group), steps)
        total, count = total + known[key], count + 1
    return total, count


def _collective(kind: str, size: int, many: int, group: Any) -> Callable[[], Any]:
    whole, part = torch.zeros(-(-size // (4 * many)) * many), torch.zeros(-(-size // (4 * many)))
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    assert kind == "reduce_scatter", kind
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _rank(rank: int, case: Case, steps: int, path: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=case.ranks)
    exchange_s, count = exchanged_s(case, steps)
    compute_s = computed_s(case, steps)
    dispatch_s = dispatched_s(case, steps)
    real_s = measured_s(case, steps)
    if rank == 0:
        parts = compute_s, exchange_s, dispatch_s
        off = 100 * (sum(parts) / real_s - 1)
        figures = " ".join(f"{1e3 * one:8.1f}" for one in (real_s, *parts, sum(parts)))
        print(f"{case.name:24} {figures} {off:+6.1f} {count:4}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Run all cases, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    print(f"{'case':24} {'real':>8} {'compute':>8} {'exchange':>8} {'host':>8} {'sum, ms':>8} {'off %':>6} {'many':>4}")
    for case in CASES:
        if given.cases and case.name not in given.cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_rank, (case, given.steps, f"{folder}/store"), case.ranks)


if __name__ == "__main__":
    main()

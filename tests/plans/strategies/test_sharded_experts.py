"""FSDP of experts that are divided over ranks: parts, gathers and scatters equal those of a real ``fully_shard``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from plans.sources.toy_source import T4, ByBytes
from plans.strategies.test_expert import BATCH, EXPERTS, INNER, WIDTH, model, source
from plans.strategies.transformers_small import tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp.errors import CdmppError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.training_step import StepMemory
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.shared_parameters import exchanges_of, rank_bytes_of
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.shared import only

OWN = 4
"""Experts of a rank, of two along ep."""
BYTES = 4 * OWN * 3 * INNER * WIDTH


class Experts(torch.nn.Module):
    """The experts that a rank of two has, in the shapes of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.ones(OWN, 2 * INNER, WIDTH))
        self.down = torch.nn.Parameter(torch.ones(OWN, WIDTH, INNER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.up.mT).sum() + self.down.sum()


class Recorded(TorchDispatchMode):
    """It notes the bytes of what is gathered and scattered, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[tuple[str, int]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for name, kind in (("_allgather_base_", "all_gather"), ("_reduce_scatter_base_", "reduce_scatter")):
            if func._schema.name == f"c10d::{name}":
                self.found.append((kind, max(one.nbytes for one in args[:2])))
        return func(*args, **(kwargs or {}))


@contextmanager
def sharded(ranks: int) -> Iterator[Experts]:
    """Yield experts on rank 0 of so many that nothing connects, by torchtitan's rule."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        made, mesh = Experts(), init_device_mesh("cpu", (ranks,))
        fully_shard(made, mesh=mesh, shard_placement_fn=lambda one: Shard(int(ranks > len(one))))
        yield made
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def even():
    return source(layers=1)


@pytest.fixture(scope="module")
def work(even):
    return even.work(BATCH, ParallelDegrees(ep=2))


def of_experts(work, strategy, **sizes):
    found = exchanges_of(strategy, StepGraph((work.rank,)), {**sizes, "ep": 2})
    return [(one.kind, one.bytes) for one in found if "ep" not in one.along and one.along]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_parts_and_exchanges_are_those_of_fully_shard(work, ranks):
    with sharded(ranks) as made, Recorded() as noted:
        own = sum(one.to_local().nbytes for one in made.parameters())
        made(torch.ones(2, WIDTH)).backward()
    expected = of_experts(work, FSDP(), dp_shard=ranks)
    assert sorted({*noted.found}) == sorted({*expected}) and len(noted.found) == 2
    memory = StepMemory(BYTES, BYTES, 2 * BYTES, 0, 0, 0, 0)
    held = FSDP().rank_bytes(memory, only(work.rank, ("ep",)).modules, {"dp_shard": ranks})
    assert (held.parameter_bytes, held.gradient_bytes, held.state_bytes) == (own, own, 2 * own)
    if ranks > OWN:
        assert own * ranks == BYTES, "nothing is padded"


def test_uneven_columns_are_refused_as_torch_refuses_them(work):
    with pytest.raises(NotImplementedError, match="uneven sharding on dim 1"), sharded(6):
        pass
    with pytest.raises(CdmppError, match="4 experts of a rank are fewer than the 6 ranks that shard them.* of 16 is"):
        of_experts(work, FSDP(), dp_shard=6)


def test_replicas_of_shards_do_not_count(work):
    """4 shards have an expert each, however many replicas there are; 8 divide each expert."""
    assert {size for kind, size in of_experts(work, HSDP(), dp_replicate=8, dp_shard=4) if kind == "all_gather"} == {
        BYTES
    }
    assert ("all_reduce", BYTES // 8) in of_experts(work, HSDP(), dp_replicate=2, dp_shard=8)


def test_parts_of_experts_are_joined_behind_the_gather(work):
    """A rank of 8 gathers a block, and then joins its columns in another place; of 4 it is in order as it comes."""
    memory, modules = StepMemory(BYTES, BYTES, 2 * BYTES, 0, 0, 0, 0), only(work.rank, ("ep",)).modules
    found = [FSDP().rank_bytes(memory, modules, {"dp_shard": ranks}).gathered_bytes for ranks in (4, 8)]
    assert found == [BYTES, 2 * BYTES]


def test_experts_that_are_not_trained_are_apart_too():
    """As adapters on attention train: they are gathered among the ranks that have the same, and never scattered."""
    made = model(layers=1)
    for name, one in made.named_parameters():
        one.requires_grad_("self_attn" in name)
    ids = tokens()
    step = Workload(made, {"input_ids": ids, "labels": ids}, mode="training_step", loss="model")
    found = PredictedSource(step, T4, EagerRuntime(ByBytes())).work(BATCH, ParallelDegrees(ep=2))
    assert of_experts(found, FSDP(), dp_shard=2) == [("all_gather", BYTES)] * 2
    assert of_experts(found, DDP(), dp_replicate=2) == []
    held = rank_bytes_of(FSDP(), found.memory, found.rank, {"dp_shard": 4, "ep": 2})
    shared = sum(one.numel() for name, one in made.named_parameters() if ".experts." not in name)
    assert held.parameter_bytes == pytest.approx(BYTES / 4 + 4 * shared / 8, rel=0.01)


def test_gradients_in_another_type_are_apart_too(even):
    """Weights are gathered in bfloat16 and gradients scattered in float32: experts among their own ranks."""
    ids = tokens()
    step = Workload(model(layers=1), {"input_ids": ids, "labels": ids}, mode="training_step", loss="model",
                    precision="bf16-fsdp")  # fmt: skip
    found = PredictedSource(step, T4, EagerRuntime(ByBytes())).work(BATCH, ParallelDegrees(ep=2))
    assert {*of_experts(found, FSDP(), dp_shard=8)} == {("all_gather", BYTES // 2), ("reduce_scatter", BYTES)}
    assert EXPERTS == 2 * OWN

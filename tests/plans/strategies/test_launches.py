"""What strategies list for several numbers of ranks at once is what they list for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.bare import bare
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.accumulate import accumulate

ROWS = (1000, 7, 64, 333, 5)
CASES = [
    DDP(),
    DDP(overlap=False, bucket_bytes=(4000,)),
    DDP(find_unused_parameters=True),
    ZeRO(),
    ZeRO(framework="deepspeed"),
    ZeRO(stage=2, bucket_elements=1000),
    ZeRO(stage=2, overlap=False),
    FSDP(),
    FSDP(overlap=False),
    FSDP(reshard_after_forward=False),
    FSDP(scatter_each_batch=True),
    FSDP().in_pipeline(),
    HSDP(),
    HSDP(overlap=False),
    HSDP().in_pipeline(),
]


def _step(batches):
    layers = [Layer(f"layer.{i}", 1e-3, 2e-3, 40 * rows, 8) for i, rows in enumerate(ROWS)]
    (rank,) = graph_of_layers(layers, update_s=1e-3).ranks
    modules = [replace(one, rows=((rows, 40),)) for one, rows in zip(rank.modules, ROWS, strict=True)]
    modules[-1] = replace(modules[-1], is_kept=True)
    return accumulate(
        StepGraph((replace(rank, modules=tuple(modules), buffers=(StepBuffer(12, "float32"),)),)), batches
    )


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("strategy", CASES, ids=str)
def test_all_numbers_of_ranks_are_listed_as_each(strategy, batches):
    step = _step(batches)
    many = [dict.fromkeys(strategy.degrees, 2), dict.fromkeys(strategy.degrees, 3), dict.fromkeys(strategy.degrees, 16)]
    found = strategy.launches(StepGraph((bare(step.ranks[0]),)), many)
    for column, sizes in enumerate(many):
        listed = strategy.exchanges(step, sizes)
        assert [found.groups[one] for one in found.group] == [(one.kind, one.along) for one in listed]
        assert found.after.tolist() == [one.after[0] for one in listed]
        assert found.follows.tolist() == [one.follows for one in listed]
        assert found.bytes[:, column].tolist() == [one.bytes for one in listed]
        waits = sorted(zip(*(one.tolist() for one in found.waits), strict=True))
        assert waits == sorted((place, number) for number, one in enumerate(listed) for place in one.before.get(0, ()))
    assert len(np.unique(found.bytes, axis=1).T) > isinstance(strategy, FSDP)


def test_all_strategies_of_replicas_are_here():
    known = {kind.name for kind in STRATEGIES if not kind.divides_model}
    assert known - {one.name for one in CASES} == {"ps"}  # it has no closed form

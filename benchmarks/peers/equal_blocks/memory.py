"""Memory of a rank with equal blocks, on its device and in the memory of the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.peers.equal_blocks.columns import BlockPlans
from benchmarks.peers.equal_blocks.way import BlockCosts
from cdmpp.plans.overlap import Floats


@dataclass(frozen=True)
class BlockMemory:
    """Bytes of the rank that needs the most, the first along the pipeline; a number a plan."""

    device_bytes: Floats
    host_bytes: Floats


def in_flight(plans: BlockPlans) -> Floats:
    """Return the micro-batches of which the first rank holds saved results at once; of a part of its blocks a part."""
    shape, many = plans.shape, plans.micro_batches
    if shape.stages == 1:
        return np.minimum(many, shape.pp).astype(np.float64)
    return np.minimum(many, shape.pp + (shape.pp - 1) / shape.stages)


def memory(plans: BlockPlans, costs: BlockCosts) -> BlockMemory:
    """Count weights, gradients, states of the optimizer and results of each plan.

    Where something lies in the memory of the host, the device has room for two blocks of it: one that runs, and one
    that comes or goes.

    Args:
        plans: of one shape.
        costs: of their blocks, a way a plan.
    """
    count, of_shard = plans.shape.blocks, np.where(plans.shards, plans.shape.dp, 1)
    weights, states = costs.weight_bytes, costs.state_bytes / of_shard
    gradients, held = costs.gradient_bytes / of_shard, in_flight(plans) * count
    saved = np.where(costs.input_bytes > 0, 0.0, costs.saved_bytes)
    results = costs.working_bytes + np.where(plans.activations_out, saved, saved * (held - 1))
    device = (
        np.where(plans.weights_out, 2, count) * weights
        + results
        + np.where(plans.activations_out, np.minimum(held, 2), held) * costs.input_bytes
        + costs.whole_gradient_bytes
        + np.where(plans.states_out, 1, count - 1) * gradients
        + np.where(plans.states_out, 2, count) * states
        + costs.result_gradient_bytes
    )
    host = (
        np.where(plans.weights_out, count * weights, 0.0)
        + np.where(plans.activations_out, held * (saved + costs.input_bytes), 0.0)
        + np.where(plans.states_out, count * (gradients + states), 0.0)
    )
    return BlockMemory(device, host)

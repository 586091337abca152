"""Closed form of a step of equal blocks, for all plans of one shape at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.equal_blocks.columns import BlockPlans, Flags, Integers
from benchmarks.peers.equal_blocks.links import Host, Tier
from benchmarks.peers.equal_blocks.way import BlockCosts
from cdmpp.plans.overlap import Floats

INNER, EDGE = 0, 1
"""Rows of arrays: a block inside a stage, and the last one of a stage, which sends to the next stage."""


@dataclass(frozen=True)
class BlockStep:
    """Seconds of a step, of a rank in the middle of the pipeline; a number a plan. The parts sum up to ``step_s``."""

    compute_s: Floats
    """Both passes of all micro-batches, and what runs again."""
    update_s: Floats
    bubble_s: Floats
    """The pipeline fills and drains."""
    split_s: Floats
    """Exchanges between the ranks that divide a block, in the open."""
    messages_s: Floats
    """Messages between stages."""
    replicas_s: Floats
    """Exchanges between replicas, in the open, and what hidden ones take from the device."""
    host_s: Floats
    """Blocks wait for the link to the host."""

    @property
    def step_s(self) -> Floats:
        """Return the seconds of a step."""
        return (
            self.compute_s + self.update_s + self.bubble_s + self.split_s + self.messages_s + self.replicas_s
            + self.host_s
        )  # fmt: skip


@dataclass(frozen=True)
class _Pass:
    """One pass of one micro-batch, (2, plans) seconds of a block."""

    block_s: Floats
    """With exchanges and messages, and waits for the host."""
    stall_s: Floats
    """The waits for the host among them."""

    def chunk_s(self, blocks: int) -> Floats:
        return (blocks - 1) * self.block_s[INNER] + self.block_s[EDGE]


def step(
    plans: BlockPlans, costs: BlockCosts, updates_s: Floats, tiers: Sequence[Tier], host: Host | None
) -> BlockStep:
    """Compute the seconds of a step of each plan.

    Pipelines run 1F1B, or interleaved 1F1B where a rank has several stages: ``(p - 1)`` of its ranks' turns of one
    stage pass before the last rank begins, and those of micro-batches that are missing in a last partial round.
    Replicas exchange the gradients of a block once its last micro-batch made them, one block after the other.

    Args:
        plans: of one shape.
        costs: of their blocks, a way a plan.
        updates_s: seconds in which a rank updates its part of a block; a number a plan.
        tiers: networks, by number.
        host: the link to the host; None: no plan may have anything there.
    """
    shape, many = plans.shape, plans.micro_batches
    blocks, passes = shape.blocks_per_stage, many * shape.stages
    message_s = _messages_s(plans, costs, tiers)
    ahead = _pass(plans, costs.forward_s + costs.forward_split_s, message_s, costs.forward_memory_s,
                  _forward_host_s(plans, costs, host))  # fmt: skip
    back = _pass(plans, costs.again_s + costs.backward_s + costs.backward_split_s, message_s, costs.backward_memory_s,
                 _backward_host_s(plans, costs, host))  # fmt: skip
    chunk_s = ahead.chunk_s(blocks) + back.chunk_s(blocks)
    missing = (-many) % shape.pp * (shape.stages - 1) if shape.stages > 1 else 0
    stall_s = (blocks - 1) * (ahead.stall_s + back.stall_s)[INNER] + (ahead.stall_s + back.stall_s)[EDGE]
    split_s = costs.forward_split_s + costs.backward_split_s
    update_s = updates_s
    if host is not None:
        moved_s = host.seconds(costs.state_bytes / np.where(plans.shards, shape.dp, 1))
        update_s = np.where(plans.states_out, np.maximum(updates_s, moved_s), updates_s)
    return BlockStep(
        compute_s=passes * blocks * (costs.forward_s + costs.again_s + costs.backward_s),
        update_s=shape.blocks * update_s,
        bubble_s=(shape.pp - 1 + missing) * chunk_s,
        split_s=passes * ((blocks - 1) * split_s[INNER] + split_s[EDGE]),
        messages_s=2 * passes * message_s,
        replicas_s=_replicas_s(plans, costs, ahead, back, tiers, message_s),
        host_s=passes * stall_s,
    )


def _messages_s(plans: BlockPlans, costs: BlockCosts, tiers: Sequence[Tier]) -> Floats:
    if plans.shape.pp == 1:
        return np.zeros(len(plans))
    return _on(plans.message_tier, tiers, lambda tier, own: tier.seconds("send_recv", costs.message_bytes[own], 2))


def _on(numbers: Integers, tiers: Sequence[Tier], seconds: Callable[[Tier, Flags], Floats]) -> Floats:
    """Seconds of what each plan sends on the network of its own number."""
    found = np.zeros(len(numbers))
    for number in np.unique(numbers).tolist():
        own = numbers == number
        found[own] = seconds(tiers[number], own)
    return found


def _pass(plans: BlockPlans, block_s: Floats, message_s: Floats, memory_s: Floats, host_s: Floats) -> _Pass:
    """Let blocks wait for the host, whose copies run while the device does not use its memory for anything else."""
    own_s = np.stack([block_s[INNER], block_s[EDGE] + message_s])
    stall_s = np.where(host_s > 0, np.maximum(0.0, host_s + memory_s - own_s), 0.0)
    return _Pass(own_s + stall_s, stall_s)


def _forward_host_s(plans: BlockPlans, costs: BlockCosts, host: Host | None) -> Floats:
    """Weights of the next block come in, results of the one before go out, at the same time."""
    if host is None:
        return np.zeros(len(plans))
    weights = np.where(plans.weights_out, costs.weight_bytes, 0.0)
    return host.seconds(np.maximum(weights, _results_out(plans, costs)))


def _backward_host_s(plans: BlockPlans, costs: BlockCosts, host: Host | None) -> Floats:
    """Weights, results and sums of gradients come in; gradients go out at the same time."""
    if host is None:
        return np.zeros(len(plans))
    gradients = costs.gradient_bytes / np.where(plans.shards, plans.shape.dp, 1)
    inwards = np.where(plans.weights_out, costs.weight_bytes, 0.0) + _results_out(plans, costs)
    inwards += np.where(plans.states_out, gradients, 0.0)
    return host.seconds(inwards)


def _results_out(plans: BlockPlans, costs: BlockCosts) -> Floats:
    kept = np.where(costs.input_bytes > 0, costs.input_bytes, costs.saved_bytes)
    return np.where(plans.activations_out, kept, 0.0)


def _replicas_s(
    plans: BlockPlans, costs: BlockCosts, ahead: _Pass, back: _Pass, tiers: Sequence[Tier], message_s: Floats
) -> Floats:
    """Exchanges between replicas in the open, and what hidden ones take from the device."""
    shape = plans.shape
    if shape.dp == 1:
        return np.zeros(len(plans))

    def seconds(kind: str) -> Floats:
        return _on(plans.replica_tier, tiers, lambda tier, own: tier.seconds(kind, sent[own], shape.dp))

    sent = costs.weight_bytes
    whole_s = seconds("all_reduce")
    scattered_s, gathered_s = seconds("reduce_scatter"), seconds("all_gather")
    beside = plans.replica_tier == plans.message_tier if shape.pp > 1 else np.zeros(len(plans), np.bool_)
    busy_s = np.where(beside, message_s, 0.0)
    in_backward_s = np.where(plans.shards, scattered_s, whole_s)
    open_s = _queued_s(plans, in_backward_s, back, costs.backward_link_s, busy_s)
    open_s = open_s + np.where(plans.shards, _queued_s(plans, gathered_s, ahead, costs.forward_link_s, busy_s), 0.0)
    all_s = shape.blocks * np.where(plans.shards, scattered_s + gathered_s, whole_s)
    shares = np.array([one.device_share for one in tiers])[plans.replica_tier]
    return np.where(plans.overlaps, open_s + shares * (all_s - open_s), all_s)


def _queued_s(plans: BlockPlans, each_s: Floats, own: _Pass, link_s: Floats, busy_s: Floats) -> Floats:
    """Seconds by which exchanges of blocks, one after the other, end behind the last pass that makes their gradients.

    A block is ready once its last micro-batch has run; those of one stage follow each other at once, and those of the
    next stage a round of micro-batches later. Either the last stage decides when all have ended, or the first one.
    """
    shape, blocks = plans.shape, plans.shape.blocks_per_stage
    is_held = (plans.split_tier == plans.replica_tier) & (shape.tp > 1)
    free_s = own.block_s - np.where(is_held, link_s, 0.0)
    inner_s = np.maximum(0.0, free_s[INNER])
    chunk_s = (blocks - 1) * inner_s + np.maximum(0.0, free_s[EDGE] - busy_s)
    round_s = np.minimum(plans.micro_batches, shape.pp) * chunk_s
    last_s = each_s + np.maximum(0.0, (blocks - 1) * (each_s - inner_s))
    first_s = shape.blocks * each_s - (shape.stages - 1) * round_s - (blocks - 1) * inner_s
    return np.maximum(last_s, first_s)

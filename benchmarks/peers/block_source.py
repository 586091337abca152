"""GPT-3 175B as equal blocks of a search, from the numbers that Calculon's own layers have for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.peers.calculon import Calculon, execution
from benchmarks.peers.equal_blocks.links import Host, Tier
from benchmarks.peers.equal_blocks.question import BlockPlan
from benchmarks.peers.equal_blocks.way import BlockCosts, Way
from cdmpp.plans.overlap import Floats

RECOMPUTE = {"none": "none", "attention": "attn_only", "full": "full"}
EXCHANGE = {"all_reduce": "ar", "scattered messages": "p2p_rs_ag", "sequence": "rs_ag"}


@dataclass(frozen=True)
class CalculonBlocks:
    """Blocks that Calculon's layers describe; each way is evaluated once, as its search does for each plan."""

    calculon: Calculon
    count: int
    _updates_s: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    def costs(self, tp: int, ways: Sequence[Way]) -> BlockCosts:
        """Return what one of ``tp`` ranks takes for one block in each way."""
        rows = [_row(self.calculon.block_of(_execution(tp, one))) for one in ways]
        return BlockCosts(*(np.array([row[place] for row in rows], np.float64).T for place in range(len(rows[0]))))

    def update_s(self, tp: int, shards: int) -> float:
        """Return the seconds of a block's update on a rank that has one of ``shards`` parts of it."""
        if (tp, shards) not in self._updates_s:
            plan = _execution(tp, Way(1, tier=1), shards)
            self._updates_s[tp, shards] = self.calculon.block_of(plan)._block_optim_time
        return self._updates_s[tp, shards]


def _row(one: Any) -> tuple[Any, ...]:
    """Numbers of a block in the order of ``BlockCosts``."""
    return (
        one._block_fw_time, one._block_agrad_time + one._block_wgrad_time, one._block_re_time, one._block_fw_mem_time,
        one._block_agrad_mem_time + one._block_wgrad_mem_time,
        (one._baseblock_fw_tp_time_exposed, one._edgeblock_fw_tp_time_exposed),
        (one._baseblock_agrad_tp_time_exposed + one._baseblock_recomm_time_exposed,
         one._edgeblock_agrad_tp_time_exposed + one._edgeblock_recomm_time_exposed),
        (one._baseblock_fw_tp_time, one._edgeblock_fw_tp_time),
        (one._baseblock_agrad_tp_time + one._baseblock_recomm_time,
         one._edgeblock_agrad_tp_time + one._edgeblock_recomm_time),
        one._block_fw_pp_size, one._block_act_storage_space, one._block_act_working_space,
        one._block_act_checkpoint_size, one._block_act_grad_space, one._block_weight_space,
        one._block_weight_grad_space, one._block_weight_grad_space_no_sharding, one._block_optimizer_space,
    )  # fmt: skip


def _execution(tp: int, way: Way, shards: int = 1) -> dict[str, Any]:
    """One block on ``tp`` ranks, and two stages, so that it has messages."""
    found = execution(2 * tp * shards, 2, shards * way.micro_batch, way.micro_batch, False, shards > 1)
    return found | _words(way) | {"tensor_par": tp, "data_par": shards, "data_par_net": 1, "pipeline_par_net": 1,
                                  "data_par_overlap": False}  # fmt: skip


def _words(way: Way) -> dict[str, Any]:
    return {
        "datatype": "float16", "fused_activation": True, "activation_recompute": RECOMPUTE[way.recompute],
        "tensor_par_comm_type": EXCHANGE[way.exchange], "seq_par_ag_redo": way.gathers_again,
        "tensor_par_overlap": way.overlap, "tensor_par_net": way.tier,
    }  # fmt: skip


def in_its_words(plan: BlockPlan) -> dict[str, Any]:
    """Write a plan as an execution of Calculon."""
    shape, way = plan.shape, plan.way
    ranks, batch = shape.tp * shape.pp * shape.dp, shape.dp * plan.micro_batches * way.micro_batch
    return execution(ranks, shape.pp, batch, way.micro_batch, False, plan.shards) | _words(way) | {
        "tensor_par": shape.tp, "data_par": shape.dp, "pipeline_par_net": plan.message_tier,
        "data_par_net": plan.replica_tier, "data_par_overlap": plan.overlaps, "pipeline_interleaving": shape.stages,
        "weight_offload": plan.weights_out, "activations_offload": plan.activations_out,
        "optimizer_offload": plan.states_out,
    }  # fmt: skip


def tiers_of(calculon: Calculon) -> tuple[Tier, ...]:
    """Return Calculon's two networks, by its formula."""
    return tuple(_tier(calculon.network(number)) for number in range(2))


def _tier(network: Any) -> Tier:
    def seconds(kind: str, sizes: Floats, ranks: int) -> Floats:
        return _each(lambda size: network.time("p2p" if kind == "send_recv" else kind, size, ranks), sizes)

    return Tier(seconds, network.size, network.must_be_filled, network.processor_usage)


def host_of(calculon: Calculon) -> Host:
    """Return the memory of its host, by its formula."""
    seconds, capacity = calculon.host()
    return Host(lambda sizes: _each(seconds, sizes), capacity)


def _each(seconds: Callable[[float], float], sizes: Floats) -> Floats:
    """Ask for each size once: few differ."""
    distinct, places = np.unique(sizes, return_inverse=True)
    return np.array([seconds(one) for one in distinct.tolist()])[places.ravel()]

"""Exchanges of groups: each group has a stream of its own, messages go one way, a folded graph takes as long."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

import pytest

from cdmpp.collectives import cluster
from cdmpp.collectives.topology import on_cluster
from cdmpp.errors import CdmppError, DataError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.bounds import computed_s
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.rank_spans import rank_spans
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.strategy_replay import replay_exchanges
from cdmpp.steps.transforms.fold import fold
from cdmpp.steps.transforms.merge_ops import merge_ops
from tests.steps.toy_graph import MIB, WIRE, ranks_of, wires
from tests.steps.toy_pipeline import pipeline

TWO_NODES = on_cluster(replace(cluster.get("dgx-h100"), devices_per_node=4, adapters_per_node=2), 8)


def idle(ranks: int) -> StepGraph:
    """Ranks that only exchange."""
    return StepGraph(tuple(RankGraph(rank, (Op("op", "forward", 0.0),)) for rank in range(ranks)))


def test_a_group_waits_for_itself_alone():
    """Two collectives of one group follow each other; those of two groups of a rank run at the same time."""
    took_s = 2 * WIRE.seconds(4 * MIB)
    for groups, step_s in ((("a", "a"), 2 * took_s), (("a", "b"), took_s), (("", ""), 2 * took_s)):
        made = [Exchange("all_reduce", 8 * MIB, {0: START, 1: START}, group=group) for group in groups]
        assert replay(idle(4).with_exchanges(made), wires(4)).step_s == pytest.approx(step_s)
    others = [Exchange("all_reduce", 8 * MIB, dict.fromkeys(ranks, START)) for ranks in ((0, 1), (2, 3), (0, 2))]
    assert replay(idle(4).with_exchanges(others), wires(4)).step_s == pytest.approx(took_s)
    graph = idle(4).with_exchanges([*others, Exchange("all_reduce", 8, dict.fromkeys(range(4), START))])
    streams = {span.stream for span in rank_spans(replay(graph, wires(4))) if span.rank == 0}
    assert streams == {"compute", "communication", "communication of 0,1", "communication of 0,2"}


def test_a_message_goes_one_way_and_leaves_computing_alone():
    """Rank 0 computes on while its result is on its way; rank 1 waits for it; a second message stands behind it."""
    ops = (Op("a", "forward", 1e-3), Op("b", "forward", 5e-3))
    graph = StepGraph((RankGraph(0, ops), RankGraph(1, ops)))
    message = Exchange("send_recv", 1_000_000, {0: 0, 1: START}, {1: (0,)}, group="0->1")
    step = replay(replace(graph, exchanges=(message,)), wires(2))
    took_s = 1e-4 + 1e-3
    assert step.step_s == pytest.approx(took_s + 6e-3)  # rank 0 is ahead, and rank 1 receives when its step begins
    assert step.busy_s == pytest.approx({0: 6e-3, 1: 6e-3}) and step.waits_s == pytest.approx({0: 0.0, 1: took_s})
    answer = replace(message, after={0: START, 1: 0}, before={0: (1,)}, group="1->0")
    both = replace(graph, exchanges=(message, message, answer))
    times = [span for key, span in replay(both, wires(2)).spans.items() if key.kind == "exchange"]
    first, second, back = sorted(times, key=lambda span: span.task.key.place)
    assert second.start_s == pytest.approx(first.end_s) and back.start_s > second.end_s
    early = replace(answer, after={0: START, 1: START})
    made = replay(replace(both, exchanges=(message, early)), wires(2)).spans.values()
    first, back = (span for span in made if span.task.key.kind == "exchange")
    assert first.start_s < back.end_s and back.start_s < first.end_s  # the other way is free


def test_a_message_of_a_folded_graph_shares_its_adapter_as_all_do():
    """Four ranks of a node send to the other one over two adapters: by one message that stands for all, or by all."""
    size = 64 * MIB
    every = [
        Exchange("send_recv", size, {rank: START, rank + 4: START}, group=f"{rank}->{rank + 4}") for rank in range(4)
    ]
    alone = replay(idle(8).with_exchanges(every[:1]), TWO_NODES).step_s
    all_s = replay(idle(8).with_exchanges(every), TWO_NODES).step_s
    one = Exchange("send_recv", size, {0: START, 1: START}, group="0->1", members=(0, 4))
    assert replay(idle(2).with_exchanges([one]), TWO_NODES).step_s == pytest.approx(all_s)
    assert all_s > 1.9 * alone
    closed_s = TWO_NODES.cost(one.collective("nccl"), one.participants).latency_s
    assert closed_s == pytest.approx(all_s, rel=1e-3)


@pytest.mark.parametrize("members", [(0, 1), (0, 4), (0, 1, 4, 5), (1, 3, 5, 7), (2, 3, 4)])
def test_ring_steps_of_a_group_take_as_long_as_its_collective(members):
    graph = idle(8).with_exchanges([Exchange("all_reduce", 64 * MIB, dict.fromkeys(members, START))])
    own = on_cluster(replace(cluster.get("dgx-h100"), devices_per_node=4, adapters_per_node=4), 8)
    steps, whole = (replay(graph, own, how).step_s for how in ("ring step", "collective"))
    assert steps == pytest.approx(whole)


def test_a_folded_job_takes_as_long():
    graph = DDP().apply(ranks_of(8))
    few = fold(graph)
    assert len(few.ranks) == 1 and few.exchanges[0].members == tuple(range(8))
    assert replay(few, TWO_NODES).step_s == pytest.approx(replay(graph, TWO_NODES).step_s)
    unlike = replace(graph, ranks=(replace(graph.ranks[0], start_s=1.0), *graph.ranks[1:]))
    message = replace(graph, exchanges=(Exchange("send_recv", 8, {0: START, 1: START}, group="0->1"),))
    shared = replace(graph, processors=("cpu",) * 8)
    assert fold(unlike) is unlike and fold(message) is message and fold(shared) is shared
    with pytest.raises(CdmppError, match="its ranks stand for 8 ranks of the job; take whole collectives"):
        replay(few, TWO_NODES, "ring step")


def test_members_are_numbers_of_ranks():
    with pytest.raises(DataError, match="members of all_reduce is .*: expected a tuple of int"):
        Exchange("all_reduce", 8, {0: 0}, members=[0, 1])
    with pytest.raises(CdmppError, match="push_pull in a folded step: servers need all 2 ranks"):
        replay(idle(1).with_exchanges([Exchange("push_pull", 8, {0: 0}, members=(0, 1))]), wires(2))
    assert Exchange("send_recv", 8, {0: 0, 1: 0}, group="1->0").participants == (1, 0)


@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize(("stages", "replicas"), [(8, 4), (4, 8), (2, 16)])
def test_a_pipeline_of_32_ranks_folds_to_its_stages(stages, replicas, is_ahead):
    topology = on_cluster(replace(cluster.get("dgx-h100"), nodes=8, devices_per_node=4, adapters_per_node=2), 32)
    every, few = (
        replay(pipeline(stages, replicas, 6, folded=folded, is_ahead=is_ahead), topology) for folded in (False, True)
    )
    assert (len(every.graph.ranks), len(few.graph.ranks)) == (32, stages)
    assert few.step_s == pytest.approx(every.step_s, rel=1e-9)
    merged = replay(merge_ops(few.graph), topology)
    assert merged.step_s == pytest.approx(every.step_s, rel=1e-9)
    assert [merged.busy_s[stage] for stage in range(stages)] == pytest.approx(
        [every.busy_s[stage * replicas] for stage in range(stages)]
    )


def test_a_job_of_1024_ranks_is_replayed_in_seconds():
    topology = on_cluster(cluster.get("dgx-h100").grown(1024), 1024)
    begun_s = time.process_time()
    step = replay(merge_ops(pipeline(8, 128, 64, ops=60, folded=True)), topology)
    assert time.process_time() - begun_s < 20
    slowest_s = max(step.busy_s.values())
    assert slowest_s < step.step_s < 1.3 * slowest_s


def test_a_folded_step_accounts_for_its_time_as_all_ranks_do():
    topology = on_cluster(replace(cluster.get("dgx-h100"), nodes=8, devices_per_node=4, adapters_per_node=2), 32)
    every, few = (
        replay_exchanges(pipeline(4, 8, 6, folded=folded), "pipeline", topology, 1.0) for folded in (False, True)
    )
    assert (every.ranks, len(every.shares), few.ranks, len(few.shares)) == (32, 32, 32, 4)
    for name in ("iteration_s", "sent_bytes", "speed_up", "no_overlap_s", "full_overlap_s"):
        assert getattr(few, name) == pytest.approx(getattr(every, name)), name
    for stage, share in enumerate(few.shares):
        one = asdict(every.shares[8 * stage])
        assert {**asdict(share), "rank": one["rank"]} == {
            key: pytest.approx(value) if key != "rank" else value for key, value in one.items()
        }
    assert few.warnings == every.warnings and any("datasheet" in one for one in few.warnings)
    # The stages in the middle send 6 x 4 MiB on and 6 x 4 MiB back, and sum 32 MiB over 8 ranks.
    assert few.sent_bytes == (2 * 6 * 4 + 2 * 7 / 8 * 32) * MIB
    assert few.full_overlap_s < few.iteration_s < few.no_overlap_s


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_one_batch_passes_the_messages_of_all_stages(stages):
    """By hand: a message on and one back between each two neighbours, though no rank takes part in more than four.

    Behind them gradients of one replica cost nothing; every rank computes one after the other, and ends with an update.
    """
    made = pipeline(stages, 1, 1)
    found = replay_exchanges(made, "pipeline", wires(stages), 1.0)
    computing_s, sent_s = computed_s(made, wires(stages)), 2 * (stages - 1) * WIRE.seconds(4 * MIB)
    assert found.iteration_s == pytest.approx(computing_s + sent_s)
    assert found.no_overlap_s == pytest.approx(computing_s + sent_s) and found.full_overlap_s < found.iteration_s


def test_a_free_pipeline_still_has_its_bubble():
    """(m + p - 1) slots of a forward and a backward pass, where all stages are alike."""
    alike = pipeline(4, 1, 8, ops=1, folded=True)
    alike = replace(
        alike,
        ranks=tuple(
            replace(one, start_s=0.0, ops=tuple(replace(op, duration_s=4e-4) for op in one.ops[:-1]))
            for one in alike.ranks
        ),
        exchanges=tuple(one for one in alike.exchanges if one.kind == "send_recv"),
    )
    assert computed_s(alike, wires(4)) == pytest.approx((8 + 4 - 1) * 2 * 4e-4)

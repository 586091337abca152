"""Where ranks exchange: ways, stages, and that rings in chunks take as long as the model says of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.collectives import cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.probed import probed
from cdmpp.collectives.ring_stage import ring_stages
from cdmpp.collectives.topology import fitted, on_cluster, on_link
from cdmpp.errors import CdmppError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.tasks import step_tasks
from tests.steps.toy_graph import MIB, ranks_of, wires


@pytest.mark.parametrize("scheme", [DDP(), FSDP()])
@pytest.mark.parametrize(
    "topology",
    [
        on_link("nvlink3", 8),
        on_link("pcie4", 4),
        on_cluster(cluster.get("dgx-a100"), 16),
        on_cluster(cluster.get("cpus-ethernet"), 4, "gloo"),
    ],
    ids=lambda topology: f"{topology.name}-{topology.ranks}",
)
def test_chunks_are_the_whole_by_any_model(scheme, topology):
    graph = ranks_of(topology.ranks)
    whole, chunks = (
        replay_strategy(graph, scheme, topology, detail).iteration_s for detail in ("collective", "ring step")
    )
    assert chunks == pytest.approx(whole)


def test_adapters_are_shared():
    """Two ranks of each node on one adapter: what each sends between nodes takes twice as long."""
    two = replace(cluster.get("dgx-a100"), devices_per_node=2, adapters_per_node=1)
    shared, own = (on_cluster(one, 4) for one in (two, replace(two, adapters_per_node=2)))
    assert shared.way(0, 2) == ("node 0 adapter 0 out", "node 1 adapter 0 in") == shared.way(1, 3)
    assert own.way(1, 3) == ("node 0 adapter 1 out", "node 1 adapter 1 in")
    assert own.way(0, 1) == ("rank 0 out", "rank 1 in")
    graph = ranks_of(4, sizes=[64 * MIB])
    exposed = [replay_strategy(graph, DDP(), topology, "ring step").exposed_s for topology in (shared, own)]
    assert exposed[0] > 1.3 * exposed[1]
    assert [stage.is_far for stage in ring_stages(own, Collective("all_reduce", MIB, 4), range(4))] == [
        False,
        True,
        False,
    ]
    assert ring_stages(own, Collective("all_reduce", MIB, 4), range(4))[1].groups == ((0, 2), (1, 3))


@pytest.mark.parametrize("topology", [on_link("ethernet-10g", 5, "gloo"), wires(4, backend="gloo"),
                                      on_cluster(cluster.get("cpus-ethernet"), 4, "gloo")])  # fmt: skip
def test_gloo_broadcasts_down_a_tree_of_whole_messages(topology):
    """Bytes that leave each rank were counted by the kernel: 2 S, 0, S, 0 of four ranks, 3 S from the root of five."""
    exchange = Exchange("broadcast", 8 * MIB, dict.fromkeys(range(topology.ranks), START))
    graph = ranks_of(topology.ranks).with_exchanges([exchange])
    sent = dict.fromkeys(range(topology.ranks), 0.0)
    tasks = [task for task in step_tasks(graph, topology, "ring step", 1).tasks if task.label == "broadcast"]
    for task in tasks:
        sent[task.key.rank] += task.flow.bytes
    whole = sent[2]
    assert [round(sent[rank] / whole) for rank in sent] == {4: [2, 0, 1, 0], 5: [3, 0, 1, 0, 0]}[topology.ranks]
    assert len(tasks) == topology.ranks - 1
    by_message, at_once = (replay(graph, topology, detail).step_s for detail in ("ring step", "collective"))
    assert by_message == pytest.approx(at_once)


def test_a_broadcast_of_gloo_takes_its_rounds():
    asked = Collective("broadcast", 8 * MIB, 4, "gloo")
    assert asked.traffic_bytes == 2 * 8 * MIB and asked.steps == 2
    line = AlphaBeta(0.0, 8e-10)  # 10 Gbit/s
    assert fitted(line, 4, "gloo").whole(asked).latency_s == pytest.approx(13.42e-3, rel=1e-3)
    assert on_link("ethernet-10g", 4, "gloo").whole(asked).latency_s == pytest.approx(14.2e-3, rel=0.02)  # and TCP
    assert [Collective("broadcast", 1, ranks, "gloo").steps for ranks in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]
    assert Collective("broadcast", 8, 4, "nccl").traffic_bytes == 8


def test_gloo_scatters_by_an_all_reduce():
    graph = ranks_of(4)
    gloo, nccl = (replay_strategy(graph, FSDP(overlap=False), wires(4, 0.0, backend=name)) for name in ("gloo", "nccl"))
    assert gloo.exposed_s == pytest.approx(nccl.exposed_s * 4 / 3)  # two gathers and a scatter that counts twice
    assert {span.kind for span in replay_strategy(graph, FSDP(), wires(4, backend="gloo"), "ring step").spans} >= {
        "all_reduce"
    }


def test_a_table_of_what_was_timed():
    topology = probed({"all_reduce": [(MIB, 1e-3), (16 * MIB, 16e-3)]}, 2, 1e9)
    found = replay_strategy(ranks_of(2, sizes=[8 * MIB]), DDP(), topology)
    assert found.iteration_s == pytest.approx(4e-3 + 8e-3)
    with pytest.raises(CdmppError, match="no send_recv was timed here, only all_reduce"):
        replay_strategy(ranks_of(2), ParameterServer(), topology)
    with pytest.raises(CdmppError, match="no all_gather was timed"):
        replay_strategy(ranks_of(2), FSDP(), topology)


def test_what_the_model_doubts_is_told():
    found = replay_strategy(ranks_of(3), DDP(), on_link("nvlink3", 3))
    assert any("3 ranks were not measured" in warning for warning in found.warnings)


def test_what_cannot_be_is_said():
    graph = ranks_of(2)
    with pytest.raises(CdmppError, match="ranks is 0: expected a whole number from 1 to"):
        fitted(AlphaBeta(0.0, 1e-9), 0)
    with pytest.raises(CdmppError, match="unknown back end 'mpi'"):
        on_link("nvlink3", 2, "mpi")
    with pytest.raises(CdmppError, match="99 ranks do not fit on cluster dgx-a100: it has 16 devices"):
        on_cluster(cluster.get("dgx-a100"), 99)
    with pytest.raises(CdmppError, match="a step of 2 ranks on 4 ranks of fitted"):
        replay_strategy(graph, DDP(), wires(4))
    with pytest.raises(CdmppError, match="unknown granularity 'ring'"):
        replay_strategy(graph, DDP(), wires(2), "ring")
    with pytest.raises(CdmppError, match="ring steps of 17 ranks: expected at most 16"):
        replay_strategy(ranks_of(17), DDP(), wires(17), "ring step")

"""What-if on jobs whose answer is known by hand, and causes that name what was planted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError, DataError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.probed_topology import probed_topology
from cdmpp.steps.replay import contention_free, replay
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.computation import computation
from cdmpp.steps.transforms.links import scale_bandwidth, without_wire_time
from cdmpp.steps.transforms.rebucket import rebucket
from cdmpp.steps.transforms.scale import scale_kernel, scale_ranks
from cdmpp.steps.transforms.straggler import without_straggler
from cdmpp.steps.wire import PAYLOAD, Wire, slowed, wires
from cdmpp.trace.diagnosis import diagnose
from cdmpp.trace.graph_file import graph_from_dict, graph_to_dict
from cdmpp.trace.op_kind import kind_of_op
from cdmpp.trace.what_if import changed

MB = 2**20


def job(slow: float = 1.0, latency_s: float = 0.0, gap_s: float = 0.0) -> StepGraph:
    """Four layers, each 1 s forward and 2 s backward with 1 MiB of gradients: 1 s on the wire and the latency."""
    ranks = []
    for rank, factor in ((0, 1.0), (1, slow)):
        forward = [Op("linear", "forward", factor, delay_s=gap_s) for _ in range(4)]
        backward = [Op("backward", "backward", 2 * factor) for _ in range(4)]
        update = Op("sgd", "update", 0.5, kind=kind_of_op("sgd", "update"))
        ranks.append(RankGraph(rank, (*forward, *backward, update), gradients([4, 5, 6, 7])))
    exchanges = tuple(
        Exchange("all_reduce", MB, {0: 4 + n, 1: 4 + n}, {0: (8,), 1: (8,)}, wire_s=1.0 + latency_s,
                 lag_s={0: 0.0, 1: 0.0})
        for n in range(4)
    )  # fmt: skip
    probed = (("all_reduce", 1, latency_s + 1e-6), ("all_reduce", MB, latency_s + 1.0))
    probed += (("all_reduce", 4 * MB, latency_s + 4.0),)
    return StepGraph(tuple(ranks), exchanges, "gloo", measured=Measured((13.5,), probed=probed))


def gradients(places: list[int], sizes: list[int] | None = None) -> tuple[Gradient, ...]:
    """The last in the model is ready first, as a trace is read."""
    sizes = sizes or [MB] * len(places)
    made = [Gradient(f"gradient {n}", size, place) for n, (size, place) in enumerate(zip(sizes, places, strict=True))]
    return tuple(reversed(made))


def step_s(one: StepGraph) -> float:
    return replay(one).step_s


def test_the_last_bucket_is_exposed():
    assert step_s(job()) == pytest.approx(4 + 8 + 1 + 0.5)


def test_a_slower_link():
    assert step_s(scale_bandwidth(job(), 0.5)) == pytest.approx(4 + 8 + 2 + 0.5)
    slow = step_s(scale_bandwidth(job(), 0.1))  # 40 s of wire from the first gradient on
    assert slow == pytest.approx(4 + 2 + 40 + 0.5)
    fixed = step_s(scale_bandwidth(job(latency_s=0.25), 0.5))  # 2.25 s each, one after the other
    assert fixed == pytest.approx(4 + 2 + 4 * 2.25 + 0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "factor", "need_s", "expected_s"),
    [
        ("all_reduce", 0.5, 0.4, 1.0),  # processors hold it up
        ("all_reduce", 0.5, 0.8, 1.6),
        ("all_reduce", 0.5, 1.2, 2.0),  # the link does, whatever it is said to carry
        ("all_reduce", 2.0, 0.4, 0.5),
        ("all_gather", 0.5, 0.4, 2.0),
    ],
)
def test_on_a_known_link_an_exchange_may_wait_for_processors(kind, factor, need_s, expected_s):
    one = replace(job().exchanges[0], kind=kind)
    carried = MB * (1.0 if kind == "all_reduce" else 0.5)  # of two ranks
    found = slowed(one, Wire(None, 0.0, 0.0), factor, carried / (PAYLOAD * need_s))
    assert found == pytest.approx(expected_s)


def shared_job() -> StepGraph:
    """Exchanges take half of a processor: the last three backward ops took a second longer for the one beside them."""
    plain = job()
    took = [1.0] * 4 + [2.0, 2.5, 2.5, 2.5] + [0.5]
    ranks = tuple(
        replace(rank, ops=tuple(replace(op, duration_s=s) for op, s in zip(rank.ops, took, strict=True)))
        for rank in plain.ranks
    )
    return replace(plain, ranks=ranks, processor_share=0.5)


def test_operators_are_longer_beside_an_exchange_that_shares_their_processor():
    traced = shared_job()
    assert step_s(traced) == pytest.approx(4 + 2 + 3 * 2.5 + 1 + 0.5)  # as it was traced
    bare = contention_free(traced)
    assert [op.duration_s for op in bare.ranks[0].ops[4:8]] == pytest.approx([2.0] * 4)
    assert contention_free(bare) is bare and contention_free(job()) == job()
    assert step_s(bare) == pytest.approx(step_s(traced), rel=2e-3)
    one = rebucket(traced, 4 * MB)  # nothing left to compute beside it
    assert step_s(one) == pytest.approx(4 + 8 + 4 + 0.5, rel=2e-3)
    assert step_s(rebucket(replace(traced, processor_share=0.0), 4 * MB)) == pytest.approx(4 + 9.5 + 4 + 0.5)
    assert step_s(without_wire_time(traced)) == pytest.approx(4 + 8 + 0.5, rel=2e-3)
    assert scale_bandwidth(traced, 0.25).processor_share == pytest.approx(0.25)
    assert scale_bandwidth(replace(traced, processor_share=0.3), 1.44).processor_share == pytest.approx(0.36)
    faster = scale_bandwidth(traced, 1.6)
    assert faster.processor_share == pytest.approx(0.5)  # two that are busy have half of it each
    assert step_s(faster) == pytest.approx(4 + 8 + 3 * 0.5 / 1.6 + 1 / 1.6 + 0.5, rel=2e-3)
    with pytest.raises(DataError, match=r"take 1\.0 of a processor"):
        replace(traced, processor_share=1.0)


def test_one_bucket_has_nothing_to_hide_behind():
    one = rebucket(job(latency_s=0.25), 100 * MB)
    assert [e.bytes for e in one.exchanges] == [4 * MB]
    assert step_s(one) == pytest.approx(4 + 8 + 4.25 + 0.5)
    two = rebucket(job(latency_s=0.25), 2 * MB)
    assert [(e.bytes, e.after[0]) for e in two.exchanges] == [(2 * MB, 5), (2 * MB, 7)]
    assert step_s(two) == pytest.approx(4 + 8 + 2.25 + 0.5, rel=1e-3)


def test_buckets_of_the_old_size_change_nothing():
    for slow in (1.0, 1.5):
        assert step_s(rebucket(job(slow, 0.1), MB)) == pytest.approx(step_s(job(slow, 0.1)))


def test_launches_and_copies_move_with_their_buckets():
    call, copy = (
        Op(name, "backward", took_s, kind=kind_of_op(name, "backward"))
        for name, took_s in (("c10d::allreduce_", 0.1), ("x::copy_bucket_to_grad", 0.25))
    )
    old = job()
    ranks = []
    for rank in old.ranks:
        backward = [one for op in rank.ops[4:8] for one in (op, call)]
        ops = (*rank.ops[:4], *backward, *[copy] * 4, rank.ops[8])
        ranks.append(RankGraph(rank.rank, ops, gradients([4, 6, 8, 10])))
    exchanges = tuple(
        replace(one, after=dict.fromkeys((0, 1), 5 + 2 * n), before=dict.fromkeys((0, 1), (12 + n,)))
        for n, one in enumerate(old.exchanges)
    )
    traced = replace(old, ranks=tuple(ranks), exchanges=exchanges)
    assert step_s(rebucket(traced, MB)) == pytest.approx(step_s(traced))
    two = rebucket(traced, 2 * MB)
    assert [op.name for op in two.ranks[0].ops].count("c10d::allreduce_") == 2
    places = [place for place, op in enumerate(two.ranks[0].ops) if op.name.endswith("copy_bucket_to_grad")]
    assert [two.waits(0).get(place, ()) for place in places] == [(0,), (), (1,), ()]
    assert step_s(two) == pytest.approx(4 + 8.2 + 2 + 0.5 + 0.5)


def test_buckets_of_one_operator():
    one = job()
    ranks = tuple(replace(rank, gradients=gradients([7, 7], [4 * MB - 8, 8])) for rank in one.ranks)
    two = rebucket(replace(one, ranks=ranks), MB)
    assert [(e.bytes, e.after[0]) for e in two.exchanges] == [(4 * MB - 8, 7), (8, 7)]


def test_a_faster_kernel_on_all_ranks():
    assert step_s(scale_kernel(job(), "lin", 0.5)) == pytest.approx(step_s(job()) - 2)
    with pytest.raises(CdmppError, match=r"'conv' in its name; the longest are backward, linear"):
        scale_kernel(job(), "conv", 0.5)


def test_no_straggler():
    assert step_s(job(slow=2.0)) == pytest.approx(8 + 16 + 1 + 0.5)
    assert step_s(without_straggler(job(slow=2.0))) == pytest.approx(step_s(job()))
    assert without_straggler(job()) == job()


def test_more_ranks_move_more():
    four = scale_ranks(job(latency_s=0.25), 4)
    assert [rank.rank for rank in four.ranks] == [0, 1, 2, 3]
    assert four.exchanges[0].wire_s == pytest.approx(3 * 0.25 + 1.5, rel=1e-5)


def test_a_wire_without_a_probe_is_a_line():
    both = replace(job(latency_s=0.5), measured=Measured())
    wire = wires(both)["all_reduce"]
    assert wire.latency_s == 0 and wire.at(MB) == pytest.approx(1.5)  # one size tells no latency
    mixed = replace(both, exchanges=(*both.exchanges, replace(both.exchanges[0], bytes=3 * MB, wire_s=3.5)))
    wire = wires(mixed)["all_reduce"]
    assert wire.latency_s == pytest.approx(0.5) and wire.at(2 * MB) == pytest.approx(2.5)


def test_causes_are_those_that_were_planted():
    found = diagnose(job(slow=1.2))
    names = [cause.name for cause in found]
    assert names[0] == "straggler rank 1"
    assert found[0].seconds == pytest.approx(0.2 * 12)
    assert "longer: op 4, backward" in found[0].spans[0]
    found = diagnose(scale_bandwidth(job(), 0.1))
    assert found[0].name == "exposed communication" and found[0].seconds == pytest.approx(34, rel=1e-4)
    assert "waits for exchange 3" in " ".join(found[0].spans)
    found = diagnose(job(gap_s=5.0))
    assert found[0].name == "idle gaps" and found[0].seconds == pytest.approx(20) and "linear" in found[0].spans[0]
    found = diagnose(job(latency_s=4.0))
    assert {"small messages", "exposed communication"} <= {cause.name for cause in found[:2]}


def test_settings_in_words():
    told = {"bandwidth": "0.5", "bucket_mb": "100", "kernel:lin": "0.5"}
    assert step_s(changed(job(), told)) == pytest.approx(2 + 8 + 8 + 0.5)
    known = {"bandwidth": "0.5", "link_gbps": str(8e-9 * MB / (PAYLOAD * 0.5))}  # half of a second's bytes
    assert step_s(changed(job(), known)) == pytest.approx(step_s(job()))
    for wrong in (
        {"link_gbps": "1"},
        {"bandwidth": "0.5", "link_gbps": "0"},
        {"speed": "2"},
        {"bandwidth": "fast"},
        {"bandwidth": "0"},
        {"ranks": "1"},
        {"straggler": "yes"},
    ):
        with pytest.raises(CdmppError):
            changed(job(), wrong)


def test_sharded_jobs_have_no_buckets():
    with pytest.raises(CdmppError, match="DistributedDataParallel"):
        rebucket(replace(job(), exchanges=()), MB)


def test_a_job_survives_its_file():
    given = job(slow=1.5, latency_s=0.25)
    given = replace(given, measured=replace(given.measured, waits_s={0: 0.5, 1: 0.0}, unprofiled_s=13.0))
    assert step_s(graph_from_dict(graph_to_dict(given))) == pytest.approx(step_s(given))
    assert graph_from_dict(graph_to_dict(given)) == given
    with pytest.raises(CdmppError, match="version"):
        graph_from_dict({})


def test_schemes_take_what_was_traced():
    one = job(latency_s=0.25)
    graph = computation(one)
    assert graph.ranks[0].phase_s == {"forward": 4.0, "backward": 8.0, "update": 0.5}
    assert graph.ranks[0].gradient_bytes == 4 * MB
    for size in (MB, 2 * MB, 100 * MB):
        found = replay_strategy(graph, DDP((size,)), probed_topology(one))
        assert found.iteration_s == pytest.approx(step_s(rebucket(one, size)), rel=1e-3)
    with pytest.raises(CdmppError, match=r"cdmpp.trace.probe"):
        probed_topology(replace(one, measured=Measured()))

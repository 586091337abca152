"""What the host of a framework makes of the work of a rank."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.collectives.topology import topology_of
from cdmpp.errors import CdmppError, DataError, UsageError
from cdmpp.plans.block_cuts import block_cuts, cut_by_products
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.framework_host import FrameworkHost
from cdmpp.plans.framework_rules import by_rules, names_of
from cdmpp.plans.frameworks import MEGATRON, NANOTRON, Framework, framework_of
from cdmpp.plans.judge import Judge
from cdmpp.plans.question import Question
from cdmpp.plans.sources.framework_source import framework_source
from cdmpp.plans.sources.hosted import HostedSource, delays_of
from cdmpp.plans.sources.source import OpExchange, StepTimes
from cdmpp.plans.transformer_shape import TransformerShape
from cdmpp.steps.step_graph import StepGraph
from tests.plans.toy_source import ToySource

SHAPE = TransformerShape(8, 64, 4, 256, 500, 32, positions=32)
DEVICE = devices.get("a100")


def links(ranks: int):
    return topology_of(max(ranks, 8), DEVICE, "dgx-a100", can_grow=True)


@cache
def source_of(shape: TransformerShape = SHAPE, framework: Framework = MEGATRON) -> HostedSource:
    return framework_source(shape, framework, DEVICE, links)


def reduced(after: int, before: int) -> OpExchange:
    return OpExchange("all_reduce", 100, "tp", after, (before,))


def test_a_device_waits_for_a_slower_host_and_for_no_faster_one():
    assert delays_of([1.0, 1.0, 1.0], [3.0, 3.0, 3.0], (), (), (), 0.0) == pytest.approx([0.0, 2.0, 2.0])
    assert delays_of([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], (), (), (), 0.0) == pytest.approx([0.0, 0.0, 0.0])
    assert delays_of([3.0, 3.0], [1.0, 1.0], (), (), (), 0.5) == pytest.approx([0.5, 0.5])


def test_the_host_runs_ahead_while_ranks_exchange():
    """Ops of 1 s, dispatched every 3 s; an exchange of 5 s after the first: it hides two of the host's pauses."""
    exchange = (reduced(0, 1),)
    found = delays_of([1.0] * 4, [3.0] * 4, exchange, (5.0,), (0.0,), 0.0)
    assert found == pytest.approx([0.0, 0.0, 0.0, 1.0])  # ends at 13, as the host dispatches the last at 12
    later = delays_of([1.0] * 4, [3.0] * 4, exchange, (5.0,), (2.0,), 0.0)
    assert later == pytest.approx([0.0, 1.0, 0.0, 2.0])  # the exchange begins at 5, not at 4; the last op at 14


def test_sequences_lie_first_and_the_loss_works_in_place_under_a_framework():
    """Of 268 MB of scores on a rank, reads and writes: the largest 1, less it 2, powers 2, sums 1, probabilities 2,
    gradients 2. A gather of 33 MB would be read and written by a copy along another axis than the first."""
    wide = TransformerShape(2, 2048, 16, 4096, 65536, 1024, is_gated=True, has_bias=False, is_tied=False)
    dividing = by_rules(["tp"], NANOTRON)[0].model_parallel
    ops = source_of(wide, NANOTRON).nominal.work(8, ParallelDegrees(tp=8), dividing).rank.ops
    scores, byte_s = 4 * 8 * 1024 * 65536 // 8, 1e-9 / DEVICE.spec["bandwidth_gbps"]
    (cast,) = [place for place, op in enumerate(ops) if op.phase == "forward" and op.output_bytes == scores][:1]
    back = next(place for place, op in enumerate(ops) if op.phase == "backward" and op.forward == cast)
    assert 10 < sum(op.duration_s for op in ops[cast + 1 : back]) / (scores * byte_s) < 13
    copies = [op.duration_s for op in ops if op.name.startswith(("cat_default", "clone_default"))]
    assert len(copies) > 8 and max(copies) < 2 * 33_554_432 * byte_s / 3


def test_hosts_that_check_exchanges_take_as_long_for_each_rank():
    """A second for each of 4 ranks and exchange outlasts all else: the device waits for it exchange after exchange."""
    assert FrameworkHost(collective_s=2e-3, check_s=1e-3).exchange_s(8) == pytest.approx(10e-3)
    source, degrees, found = source_of(), ParallelDegrees(tp=4), list[float]()
    dividing = by_rules(["tp"], MEGATRON)[0].model_parallel
    for check_s in (0.0, 1.0):
        work = source.under(replace(MEGATRON.host, check_s=check_s), links).work(2, degrees, dividing)
        found.append(sum(op.delay_s for op in work.rank.ops))
    many = sum(one.after < len(work.rank.ops) - 1 for one in work.exchanges)
    assert found[1] - found[0] == pytest.approx(4 * many, rel=0.02)


def test_times_are_those_of_the_work_and_of_another_host():
    source = source_of()
    tensor = by_rules(("tp",), MEGATRON)[0].operators
    for degrees in (ParallelDegrees(), ParallelDegrees(tp=2)):
        for own in (source, source.under(FrameworkHost(dispatch=3.0), links, 2.0)):
            times, work = own.times(2, degrees, tensor), own.work(2, degrees, tensor)
            assert times is not None and times.seconds == pytest.approx(StepTimes.of(work).seconds)
            assert times.once_s == pytest.approx(work.rank.start_s)
            hosted_s = sum(work.dispatch_s)
            busy_s = sum(op.delay_s + op.duration_s for op in work.rank.ops) + work.rank.start_s
            assert (
                hosted_s <= busy_s + sum(2e-3 for _ in work.exchanges) + 1e-9
            )  # nothing ends before it was dispatched
    exchanges = source.work(2, ParallelDegrees(tp=2), tensor).exchanges
    assert sum(one.bytes == 2 * 2 * 32 * 64 for one in exchanges) == 2 * 2 * 8 + 2  # blocks both ways, and both ends


def test_gradients_are_added_up_in_the_type_of_the_buffer():
    source = source_of()
    wide, narrow = (replace(source, gradient=size, _plain={}, _works={}).work(2, ParallelDegrees()) for size in (4, 2))
    sizes = [sum(one.bytes for one in work.rank.gradients) for work in (wide, narrow)]
    assert sizes[0] == 2 * sizes[1]
    seconds = [sum(op.duration_s for op in work.rank.ops) for work in (wide, narrow)]
    bandwidth = 0.9e9 * DEVICE.spec["bandwidth_gbps"]
    assert seconds[0] - seconds[1] == pytest.approx(3 * sizes[1] / bandwidth, rel=1e-6)


def test_a_source_without_a_host_is_refused():
    source = HostedSource(ToySource(4), FrameworkHost(), links)
    with pytest.raises(DataError, match="when the host dispatches ops"):
        source.work(1, ParallelDegrees())


@pytest.mark.parametrize("framework", [MEGATRON, NANOTRON])
def test_all_plans_of_a_framework_are_judged_and_times_of_another_host_need_no_new_cut(framework):
    shape = SHAPE if framework is MEGATRON else replace(SHAPE, positions=0, is_gated=True, has_bias=False)
    source = source_of(shape, framework)
    asked = Question(
        source, lambda ranks: framework.host.topology(links(ranks)), 8, 16, names_of(framework), is_gpu=True,
        rules=lambda names: by_rules(names, framework), recomputes=False,
    )  # fmt: skip
    judged = asked.judged()
    plans = judged.plans.taken(np.flatnonzero(judged.fits))
    assert {"tp", "pp", "dp_replicate"} <= {
        name for row in range(len(plans)) for name in plans.degrees_of(row).beyond_one()
    }
    assert not plans.recompute.any()
    judge, slower = Judge(source), source.under(replace(framework.host, dispatch=5.0), links)
    known = judge.closed_form(plans, links(8))
    again = judge.timed_by(slower).closed_form(plans, links(8))
    assert again.step_s == pytest.approx(Judge(slower).closed_form(plans, links(8)).step_s)
    assert (again.step_s > 1.5 * known.step_s).all()


def test_stages_have_as_many_blocks_or_share_out_what_they_multiply():
    """The head counts as four blocks, so that all count 20: shares of 10, of 5 and of 2.5, the first two just reached.

    Of eight stages, the last but one has a block and the norm, with which the head counts.
    """
    block, head = 4 * 2048**2 + 3 * 8192 * 2048, 131072 * 2048
    found = [cut_by_products([block] * 16, head, stages) for stages in (1, 2, 4, 8, 16)]
    assert found[:4] == [[20], [10, 10], [5, 5, 5, 5], [3, 2, 3, 2, 3, 2, 2, 3]]
    assert found[4][-4:] == [2, 1, 1, 1]  # a block with the norm, the head, the cast, the loss
    assert cut_by_products([1] * 4, 1, 3, behind=1) == [2, 2, 1]  # 2 of 5 and 4 of 5 are above a third and two
    work = source_of().work(2, ParallelDegrees())
    places = CutPlaces(work.rank)
    assert block_cuts(places, 4, counts_head=False) == tuple(places.named(f"blocks.{n}") for n in (2, 4, 6))
    with pytest.raises(CdmppError, match="8 blocks do not divide among 3 stages"):
        block_cuts(places, 3, counts_head=False)


def test_the_last_stages_of_nanotron_may_have_the_scores_and_the_loss_alone():
    """Eight blocks and a head of four count 12: of eight stages each has 1.5, the sixth with the norm reaches all."""
    wide = replace(SHAPE, positions=0, has_bias=False, is_gated=True, vocabulary=4104, is_tied=False)
    places = CutPlaces(source_of(wide, NANOTRON).work(2, ParallelDegrees()).rank)
    ops = places.rank.ops
    cuts = block_cuts(places, 8, counts_head=True)
    (product,) = [place for place in places.forward if place >= cuts[-2] and ops[place].kind == "dense"]
    assert cuts[-2] == product and places.forward.index(cuts[-1]) == places.forward.index(product) + 1
    with pytest.raises(CdmppError, match="13 stages of 8 blocks, of which one would be empty"):
        block_cuts(places, 13, counts_head=True)


def test_the_gradient_of_the_last_sum_is_sent_back():
    """No op of the backward pass is the sum's own: its gradient is what the norm behind it makes."""
    wide = replace(SHAPE, positions=0, has_bias=False, is_gated=True, vocabulary=4104, is_tied=False)
    places = CutPlaces(source_of(wide, NANOTRON).work(2, ParallelDegrees()).rank)
    (cut,) = block_cuts(places, 2, counts_head=True)[-1:]
    norm = next(place for place in reversed(places.norms) if place < places.layers[-1])
    (last_sum,) = places.rank.ops[norm].inputs
    assert last_sum not in places.backward_of and last_sum in places.trained
    for at in (cut, norm):
        sizes, has_gradient = places.crossing(at)
        assert has_gradient == [True] and sizes.tolist() == [[2 * 2 * SHAPE.sequence * SHAPE.hidden]]
    words = [place for place in places.forward if not places.rank.ops[place].inputs]
    assert set(places.forward) - places.trained <= {*words}  # all others learn


def test_nanotron_exchanges_buckets_meanwhile_and_all_gradients_behind_where_states_are_divided():
    work = source_of(replace(SHAPE, positions=0, is_gated=True, has_bias=False), NANOTRON).work(2, ParallelDegrees())
    whole, small = 4 * sum(one.bytes for one in work.rank.gradients) // 4, replace(NANOTRON, exchange_bytes=10**5)
    backward = [place for place, op in enumerate(work.rank.ops) if op.phase == "backward"]
    for framework, name, kinds in (
        (NANOTRON, "zero1", ["all_reduce", "all_gather"]), (MEGATRON, "zero1", ["reduce_scatter", "all_gather"])
    ):  # fmt: skip
        (combination,) = by_rules([name], framework)
        found = combination.strategy.exchanges(StepGraph((work.rank,)), {"dp_replicate": 4})
        assert [one.kind for one in found] == kinds
        assert [one.bytes for one in found] == [whole, whole // 2]
    for framework, overlaps in ((small, True), (MEGATRON, False)):
        (combination,) = by_rules(["data"], framework)
        found = combination.strategy.exchanges(StepGraph((work.rank,)), {"dp_replicate": 4})
        assert {one.kind for one in found} == {"all_reduce"} and sum(one.bytes for one in found) == whole
        assert (len(found) > 1) == overlaps and (found[0].after[0] < backward[-1] - 5) == overlaps


def test_messages_wait_for_hosts_and_collectives_do_not():
    later = FrameworkHost(message_s=1e-3, far_message_s=5e-3).topology(links(16))
    for pair, more_s in (((0, 1), 1e-3), ((0, 8), 5e-3)):
        size = np.array([1e6])
        own, before = (one.latency_s("send_recv", size, pair)[0] for one in (later, links(16)))
        assert own - before == pytest.approx(more_s, rel=2e-3)
    assert later.latency_s("all_reduce", np.array([1e6]), range(8)) == pytest.approx(
        links(16).latency_s("all_reduce", np.array([1e6]), range(8))
    )
    assert FrameworkHost().topology(later) is later


def test_settings_of_a_host_and_strategies_that_no_framework_has():
    assert framework_of("megatron,host.dispatch=2.5").host.dispatch == 2.5
    assert framework_of("megatron,host.dispatch=2.5").host.collective_s == MEGATRON.host.collective_s
    with pytest.raises(UsageError, match="host.dispatch is 'slow': expected a number"):
        framework_of("megatron,host.dispatch=slow")
    with pytest.raises(CdmppError, match="dispatch"):
        framework_of("megatron,host.dispatch=-1")
    with pytest.raises(UsageError, match="--framework megatron with fsdp"):
        by_rules(("fsdp",), MEGATRON)
    with pytest.raises(UsageError, match="recompute=attention"):
        framework_source(SHAPE, replace(MEGATRON, recompute="attention"), DEVICE, links)

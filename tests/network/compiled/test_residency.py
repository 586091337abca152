"""How far away a kernel's data lies, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp import devices
from cdmpp.devices.launch_overheads import LaunchOverheads
from cdmpp.network.compiled.cold import cold_seconds, far_of, levels_of
from cdmpp.network.compiled.residency import Touch, touches
from tests.network.graphs import KIB, call, graph_of_calls, task


def far_seconds(graph, device):
    levels = levels_of(device)
    return [far_of(seen, levels) for seen in touches(graph)]


def test_a_result_is_near_and_a_weight_a_whole_run_away():
    first, second = call(0, written=10, resident=[(0, 100)]), call(1, 0, written=20, resident=[(1, 200)])
    graph = graph_of_calls(first, second)
    in_first, in_second = touches(graph)
    # Since the first weight: its result, the second weight, the result of that.
    assert in_first[0] == Touch(100, 10 + 200 + 20, False)
    assert in_second == [Touch(200, 10 + 20 + 100, False), Touch(10, 200, False), Touch(20, 100 + 200 + 10, True)]


def test_of_a_table_some_rows_are_touched():
    graph = graph_of_calls(call(0, written=64, resident=[(0, 10**9)]), tasks={"t": task("t", "elementwise", 0.0)})
    assert [touch.bytes for touch in touches(graph)[0]] == [64, 64]
    computed = graph_of_calls(call(0, written=64, resident=[(0, 10**6)]), tasks={"t": task("t", flops=10**6)})
    assert touches(computed)[0][0].bytes == 10**6


def test_what_fits_the_cache_of_the_lone_kernel_costs_nothing():
    device = devices.get("epyc-genoa")
    near, _, memory = levels_of(device)
    small = graph_of_calls(call(0, written=KIB, resident=[(0, 8 * KIB)]), call(1, 0, written=KIB))
    assert far_seconds(small, device) == [0.0, 0.0]
    weight = 64 << 20
    large = graph_of_calls(
        *(call(i, *([i - 1] if i else []), written=KIB, resident=[(i, weight // 64)]) for i in range(64))
    )
    apart = far_seconds(large, device)
    expected = (weight // 64) * (memory.seconds_per_byte - levels_of(device)[1].seconds_per_byte)
    assert apart[5] == pytest.approx(expected, rel=0.05), "alone a mebibyte of weights and the result miss the L2"
    assert near.bytes == 1024 * device.spec["l2_kb"]


def test_only_a_measured_share_counts():
    device = devices.get("epyc-genoa")
    graph = graph_of_calls(call(0, resident=[(0, 64 << 20)]), call(1, 0, resident=[(1, 4096)]))
    far = far_seconds(graph, device)
    assert far[1] > 0
    half = replace(device, launch_overheads=LaunchOverheads(exposed_share=0.5))
    alone = [1.0, 1.0]
    assert cold_seconds(graph, half, alone) == pytest.approx([0.5 * value for value in far])
    assert cold_seconds(graph, replace(device, launch_overheads=LaunchOverheads()), alone) == [0.0, 0.0]


def test_no_kernel_is_faster_than_memory_where_no_cache_holds_its_data():
    device = replace(devices.get("epyc-genoa"), launch_overheads=LaunchOverheads(exposed_share=1.0))
    weight = 150 << 20
    graph = graph_of_calls(call(0, resident=[(0, weight)]))
    (longer,) = cold_seconds(graph, device, [1e-3])
    assert 1e-3 + longer == pytest.approx((weight + 4 * KIB) * 1e-9 / device.spec["core_gbps"])
    assert cold_seconds(graph, device, [1.0]) == [0.0]


def test_of_a_shared_cache_only_a_part_keeps_data():
    device = devices.get("epyc-genoa")
    graph = graph_of_calls(*(call(i, resident=[(i, 2 << 20)]) for i in range(8)))
    whole, part = (
        replace(device, launch_overheads=LaunchOverheads(exposed_share=1.0, resident_bytes=own))
        for own in (None, 8 << 20)
    )
    assert sum(far_seconds(graph, whole)) < sum(far_seconds(graph, part))
    assert [level.bytes for level in levels_of(part)][:2] == [1 << 20, 8 << 20]


def test_a_device_without_bandwidths_says_nothing():
    assert levels_of(devices.get("hl-100")) == ()
    assert far_seconds(graph_of_calls(call(0)), devices.get("hl-100")) == [0.0]

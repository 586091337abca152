"""What later convolutions of NeuSight's files have too much is found and taken off, of no other operator."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.data.importers.neusight_convolutions import ConvolutionTimes, time_added, without_added
from cdmpp.data.schema import Record
from cdmpp.operators.operator import EagerOperator


def convolutions(n, seed=0):
    """Random ones as in the tables, what a device of 10 TFLOP/s takes for each, and where each stands."""
    rng = np.random.default_rng(seed)
    operators = [
        EagerOperator(
            "conv2d",
            {
                "batch": int(rng.integers(1, 65)),
                "in_channels": int(np.exp(rng.uniform(1.1, 7.6))),
                "out_channels": int(np.exp(rng.uniform(1.1, 7.6))),
                "in_size": int(rng.integers(5, 60)),
                "kernel": 3,
                "padding": 1,
            },
        )
        for _ in range(n)
    ]
    flops = np.array([operator.flops for operator in operators])
    own_s = (60e-6 + flops / 1e13) * np.exp(rng.normal(0, 0.08, n))
    return operators, own_s, flops, np.array([operator.io_bytes for operator in operators]), np.arange(2.0, n + 2)


@pytest.mark.parametrize(("linear", "square"), [(0.0, 0.0), (3e-4, 0.0), (1e-4, 3e-4)])
def test_what_was_added_is_found_whatever_its_shape(linear, square):
    _, own_s, flops, io_bytes, lines = convolutions(3000)
    place = lines / lines.max()
    added = linear * place + square * place**2
    found = time_added(lines, own_s + added, flops, io_bytes)
    assert np.abs(found - added).max() < 12e-6
    assert (np.diff(found) >= 0).all()


def test_few_rows_tell_nothing():
    _, own_s, flops, io_bytes, lines = convolutions(300)
    assert not time_added(lines, own_s + 1e-7 * lines, flops, io_bytes).any()


def record(name, device, line, latency_s):
    return Record(
        f"{device}-{name}", name, device, "{}", "{}", (latency_s,), latency_s, "given", latency_s, latency_s,
        protocol="neusight", extra={"line": str(int(line)), "split": "train"},
    )  # fmt: skip


def test_convolutions_change_each_device_by_itself_and_what_is_mostly_added_leaves():
    operators, own_s, _, _, lines = convolutions(2000)
    named = {f"t{i}": operator for i, operator in enumerate(operators)}
    slow = [record(f"t{i}", "p100-pcie", lines[i], own_s[i] + 2e-7 * lines[i]) for i in range(2000)]
    right = [record(f"t{i}", "t4", lines[i], own_s[i]) for i in range(2000)]
    times = ConvolutionTimes()
    for place, one in enumerate([*slow, *right], start=1):
        times.append(place, one, named[one.task_id])
    added, left_out = times.added()
    assert 50 < len(left_out) < 2000 and left_out.max() <= 2000 and set(added) <= set(range(1, 4001))
    rows = [(place, one) for place, one in enumerate([*slow, *right], start=1) if place not in set(left_out.tolist())]
    by_id = {one.record_id: without_added(one, added[place]) if place in added else one for place, one in rows}
    before = {one.record_id: one.latency_s for one in slow}
    gone = [i for i in range(2000) if f"p100-pcie-t{i}" not in by_id]
    assert np.median([2e-7 * lines[i] / before[f"p100-pcie-t{i}"] for i in gone]) > 0.5
    errors = [abs(by_id[f"p100-pcie-t{i}"].latency_s / own_s[i] - 1) for i in range(2000) if i not in set(gone)]
    assert np.median(errors) < 0.03
    one = by_id["p100-pcie-t999" if 999 not in gone else f"p100-pcie-t{min(set(range(2000)) - set(gone))}"]
    assert one.latency_samples_s == (one.latency_s,) and one.latency_min_s == one.latency_median_s == one.latency_s
    assert float(one.extra["added_s"]) == pytest.approx(before[one.record_id] - one.latency_s, rel=1e-3)

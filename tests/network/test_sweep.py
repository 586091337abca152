"""`cdmpp.sweep_network`: a point is what the single question answers; what cannot be swept is refused."""

from __future__ import annotations

import json

import pytest

import cdmpp
from cdmpp import devices
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.compose import compose
from cdmpp.network.eager.launch import launched, launched_briefly
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.report.html import html_page
from cdmpp.report.sweep import sweep_report

SIZES = {"batch": [1, 2, 8, 32], "seq": [16, 128, 512]}


@pytest.fixture(scope="module")
def found():
    return cdmpp.sweep_network("bert_tiny", axes=SIZES, device="h100", runtime="torch")


def test_a_point_is_the_answer_to_its_single_question(found):
    assert [(p.sizes["batch"], p.sizes["seq"]) for p in found.points] == [
        (batch, seq) for batch in SIZES["batch"] for seq in SIZES["seq"]
    ]
    for point in (found.points[0], found.points[7], found.points[-1]):
        workload = cdmpp.Workload("bert_tiny", batch=point.sizes["batch"], sequence=point.sizes["seq"])
        single = cdmpp.predict_network(workload, device="h100", runtime="torch")
        # programs of other points stand in the same matrices of the model: the last bits of float32 may differ
        assert point.latency_s == pytest.approx(single.latency_s, rel=3e-6)
        assert (point.peak_bytes, point.batch, point.warnings) == (single.peak_bytes, single.batch, single.warnings)
        for level, ends in single.intervals.items():
            assert point.intervals[level] == pytest.approx(ends, rel=1e-5)
    row = found.table()[-1]
    assert row["tokens_per_s"] == 32 * 512 / row["latency_s"] and row["samples_per_s"] == 32 / row["latency_s"]
    assert not found.notes


def test_a_brief_launch_takes_as_long_as_the_whole_one():
    runtime, device = EagerRuntime(), devices.get("t4")
    priced = runtime.price(runtime.read(cdmpp.Workload("bert_tiny", batch=3, sequence=40), device), device)
    one, other = compose(priced, launched(priced)), compose(priced, launched_briefly(priced))
    assert (one.latency_s, one.overhead_s, one.warnings) == (other.latency_s, other.overhead_s, other.warnings)
    assert one.intervals == other.intervals


def test_steps_of_training_have_their_phases():
    workload = cdmpp.Workload("bert_tiny", mode="training_step", sequence=32)
    found = cdmpp.sweep_network(workload, axes={"batch": [2, 4]}, device="a100-pcie-40gb", runtime="torch")
    single = cdmpp.predict_step(
        cdmpp.Workload("bert_tiny", batch=4, sequence=32), device="a100-pcie-40gb", runtime="torch"
    )
    row = found.table()[-1]
    assert {key: row[key] for key in ("forward_s", "backward_s", "update_s")} == pytest.approx(
        {f"{phase}_s": seconds for phase, seconds in single.phase_s.items()}, rel=3e-6
    )
    assert row["peak_bytes"] == single.step.peak_bytes and row["tokens_per_s"] == 4 * 32 / row["latency_s"]


def test_the_report_has_rows_curves_and_all_numbers(found):
    report = sweep_report(found)
    assert report.title.startswith("bert_tiny on h100, 12 points")
    assert [chart.title for chart in report.charts] == ["Time", "Throughput"]
    assert set(report.charts[0].picture.labels) == {"seq 16", "seq 128", "seq 512"}
    assert "seq 512" in html_page([report])
    told = json.loads(json.dumps(report.answer, allow_nan=False))
    assert told["axes"] == SIZES and len(told["points"]) == 12
    best = max(found.table(), key=lambda row: row["tokens_per_s"])
    assert f"batch {best['batch']}" in report.totals[0].text


@pytest.mark.parametrize(
    ("axes", "error"),
    [
        ({}, "nothing is swept: give the sizes of an axis, one of batch, seq, past"),
        ({"width": [1]}, "there is no axis 'width' to sweep: one of batch, seq, past"),
        ({"batch": []}, "the axis batch has no sizes"),
        ({"batch": [0]}, "a size of batch is 0: expected a whole number from 1"),
        ({"batch": [2, 2]}, "axes\\['batch'\\] says 2 twice"),
        ({"batch": list(range(1, 102)), "seq": list(range(1, 101))}, "10,100 points: take at most 10,000"),
        ({"seq": [8, 1024]}, "has 512 positions"),
        ({"past": [8]}, "past is 8: only networks of an hf: name"),
    ],
)
def test_sizes_that_cannot_be_swept_are_refused(axes, error):
    with pytest.raises(UsageError, match=error):
        cdmpp.sweep_network("bert_tiny", axes=axes, device="h100", runtime="torch")


def test_what_is_given_twice_or_has_no_such_axis_is_refused():
    with pytest.raises(UsageError, match="batch is 4 and swept, too"):
        cdmpp.sweep_network(cdmpp.Workload("bert_tiny", batch=4), axes={"batch": [2]}, device="h100", runtime="torch")
    with pytest.raises(UsageError, match="inputs give shapes, and sizes are swept"):
        workload = cdmpp.Workload("bert_tiny", inputs={"input_ids": (2, 8)})
        cdmpp.sweep_network(workload, axes={"batch": [2]}, device="h100", runtime="torch")
    with pytest.raises(CdmppError, match="its input is image, not tokens"):
        cdmpp.sweep_network("torchvision:resnet18", axes={"seq": [2]}, device="h100", runtime="torch")


def test_the_other_runtime_answers_point_by_point(monkeypatch):
    asked = []

    def predict(workload, device, runtime, progress):
        asked.append((workload.batch, progress))
        single = EagerRuntime()
        read = single.read(cdmpp.Workload("bert_tiny", batch=workload.batch, sequence=8), device)
        return compose(priced := single.price(read, device), launched_briefly(priced))

    monkeypatch.setattr("cdmpp.network.sweep.predict_network", predict)
    found = cdmpp.sweep_network("bert_tiny", axes={"batch": [1, 2]}, device="h100", progress=False)
    assert asked == [(1, False), (2, False)] and len(found.points) == 2

"""`cdmpp.sweep_network`: a point is what the single question answers; what cannot be swept is refused."""

from __future__ import annotations

import json

import pytest

import cdmpp
from cdmpp import devices
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.compose import compose
from cdmpp.network.eager.kept_reads import kept_reads
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
    for point in found.points:
        kept_reads.cache_clear()  # so that the single question exports the network by itself
        workload = cdmpp.Workload("bert_tiny", batch=point.sizes["batch"], sequence=point.sizes["seq"])
        single = cdmpp.predict_network(workload, device="h100", runtime="torch")
        assert point.latency_s == pytest.approx(single.latency_s, rel=1e-6)
        assert (point.peak_bytes, point.batch, point.warnings) == (single.peak_bytes, single.batch, single.warnings)
        for level, ends in single.intervals.items():
            assert point.intervals[level] == pytest.approx(ends, rel=1e-6)
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
        ({}, "nothing is swept: give the sizes of an axis, one of batch, seq, past, decoder-seq, image"),
        ({"width": [1]}, "there is no axis 'width' to sweep: one of batch, seq, past"),
        ({"image": [32]}, "the axis image is the side of an image, of torchvision: names"),
        ({"decoder-seq": [8, 16]}, "decoder_sequence is 8: only networks of an hf: name take it"),
        ({"batch": []}, "the axis batch has no sizes"),
        ({"batch": [0]}, "a size of batch is 0: expected a whole number from 1"),
        ({"batch": [2, 2]}, "axes\\['batch'\\] says 2 twice"),
        ({"batch": list(range(1, 102)), "seq": list(range(1, 101))}, "10,100 points: take at most 10,000"),
        ({"seq": [1000, 1024]}, "has 512 positions"),
        ({"past": [8]}, "past is 8: only networks of an hf: name"),
    ],
)
def test_sizes_that_cannot_be_swept_are_refused(axes, error):
    with pytest.raises(UsageError, match=error):
        cdmpp.sweep_network("bert_tiny", axes=axes, device="h100", runtime="torch")


def test_points_that_the_network_cannot_have_are_named_and_the_others_answered(found):
    axes = {"batch": [2, 8], "seq": [16, 128, 513, 1024]}
    some = cdmpp.sweep_network("bert_tiny", axes=axes, device="h100", runtime="torch")
    assert [one.sizes for one in some.refused] == [
        {"batch": batch, "seq": seq} for batch in (2, 8) for seq in (513, 1024)
    ]
    assert all("512 positions" in one.reason for one in some.refused)
    rows = some.table()
    assert [(row["batch"], row["seq"]) for row in rows] == [(b, s) for b in axes["batch"] for s in axes["seq"]]
    for row in rows:
        known = next(
            (one.row() for one in found.points if one.sizes == {"batch": row["batch"], "seq": row["seq"]}), None
        )
        if known is None:
            assert row["latency_s"] is None and "positions" in row["refused"] and row["warnings"] == []
        else:
            assert row["refused"] is None and row["latency_s"] == pytest.approx(known["latency_s"], rel=1e-6)
    report = sweep_report(some)
    assert "4 points and 4 that it cannot have" in report.title
    assert json.loads(json.dumps(report.answer, allow_nan=False))["points"][2]["refused"]


def test_the_side_of_images_and_tokens_of_a_decoder_and_of_a_cache_are_axes():
    on = {"device": "h100", "runtime": "torch"}
    found = cdmpp.sweep_network("torchvision:resnet18", axes={"batch": [2, 4], "image": [64, 96]}, **on)
    single = cdmpp.Workload("torchvision:resnet18", inputs={"x": (4, 3, 96, 96)})
    assert found.points[-1].latency_s == pytest.approx(cdmpp.predict_network(single, **on).latency_s, rel=1e-6)
    found = cdmpp.sweep_network(cdmpp.Workload("hf:t5-small", sequence=16), axes={"decoder-seq": [8, 16]}, **on)
    single = cdmpp.Workload("hf:t5-small", sequence=16, decoder_sequence=8)
    assert found.points[0].latency_s == pytest.approx(cdmpp.predict_network(single, **on).latency_s, rel=1e-6)
    found = cdmpp.sweep_network("hf:gpt2", axes={"past": [16, 32, 1024]}, **on)
    single = cdmpp.Workload("hf:gpt2", past=32)
    assert found.points[1].latency_s == pytest.approx(cdmpp.predict_network(single, **on).latency_s, rel=1e-6)
    assert [one.sizes for one in found.refused] == [{"past": 1024}]


def test_a_module_has_the_axes_of_its_example_inputs():
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 4))
    workload, on = cdmpp.Workload(layers, torch.zeros(2, 5, dtype=torch.long)), {"device": "h100", "runtime": "torch"}
    found = cdmpp.sweep_network(workload, axes={"batch": [2, 3], "seq": [5, 7]}, **on)
    single = cdmpp.Workload(layers, torch.zeros(3, 7, dtype=torch.long))
    assert found.points[-1].latency_s == pytest.approx(cdmpp.predict_network(single, **on).latency_s, rel=1e-6)
    assert found.points[-1].batch == 3
    with pytest.raises(UsageError, match="the axis past is of networks of a name"):
        cdmpp.sweep_network(workload, axes={"past": [2]}, **on)
    with pytest.raises(UsageError, match="the axis seq is of tokens, and the first example input has the shape"):
        cdmpp.sweep_network(cdmpp.Workload(torch.nn.Linear(8, 4), torch.zeros(2, 8)), axes={"seq": [2]}, **on)
    with pytest.raises(UsageError, match="a module has the sizes of its example inputs"):
        cdmpp.sweep_network(cdmpp.Workload(layers), axes={"batch": [2]}, **on)


def test_an_open_dimension_of_an_onnx_file_is_an_axis_by_its_name(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    np = pytest.importorskip("numpy")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in (("x", 8), ("y", 4))]
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path := tmp_path / "net.onnx")
    on = {"device": "h100", "runtime": "torch"}
    found = cdmpp.sweep_network(str(path), axes={"N": [2, 64, 4096]}, **on)
    single = cdmpp.predict_network(cdmpp.Workload(str(path), inputs={"N": (4096,)}), **on)
    assert found.points[-1].latency_s == pytest.approx(single.latency_s, rel=1e-6) and not found.notes
    with pytest.raises(CdmppError, match="M"):
        cdmpp.sweep_network(str(path), axes={"M": [2, 4]}, **on)


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

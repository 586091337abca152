"""A network that its device cannot hold is answered with that said first; what fits, or is not known, says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cdmpp.report
from cdmpp import devices
from cdmpp.cli.command import main
from cdmpp.network.memory import with_memory_warning
from tests.network.example_prediction import example


@pytest.mark.parametrize(
    ("device", "held_bytes", "told"),
    [
        ("a100", 39 << 30, False),
        ("a100", 41 << 30, True),
        ("h200", 141 << 30, False),
        ("h200", 142 << 30, True),
        ("epyc-genoa", 12 << 40, False),  # its sheet names no size: it depends on the machine, but none has more
        ("epyc-genoa", (12 << 40) + 1, True),
    ],
)
def test_what_does_not_fit_is_said_first(device, held_bytes, told):
    found = with_memory_warning(replace(example(), warnings=("another",)), devices.get(device), held_bytes)
    assert found.warnings[-1] == "another" and len(found.warnings) == 1 + told
    if told:
        assert found.warnings[0].startswith("WARNING: it holds ") and f"but {device} has " in found.warnings[0]


def test_text_json_and_page_begin_with_it(tmp_path):
    large = replace(example(), weight_bytes=30 << 30, input_bytes=5 << 30, activation_bytes=6 << 30)
    found = with_memory_warning(large, devices.get("a100"))
    assert found.to_dict()["warnings"][0].startswith(
        "WARNING: it holds 44.0 GB at a time, but a100 has 40 GB of memory"
    )
    page = tmp_path / "page.html"
    cdmpp.report.write_html(found, page)
    assert "<ul><li>WARNING: it holds 44.0 GB at a time" in page.read_text(encoding="utf-8")


@pytest.mark.tvm
def test_every_verb_that_answers_networks_says_it(tmp_path, capsys):
    pytest.importorskip("tvm")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2**40, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "large", values[:1], values[1:])
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    for words in (f"network {path} --device a100", f"compare {path} --devices a100,epyc-genoa"):
        main([*words.split(), "--schedule", "untuned", "--json"])
        shown = capsys.readouterr()
        assert "WARNING: it holds 563 TB at a time, but a100 has 40 GB" in shown.err.splitlines()[0]
        answers = 1 + words.startswith("compare")
        assert shown.err.count("WARNING") == shown.out.count("WARNING: it holds 563 TB") == answers


def test_a_training_step_counts_gradients_and_states():
    """36 million parameters: 144 MB of weights, which 500 MB hold, but not 576 MB with gradients and AdamW's states."""
    torch = pytest.importorskip("torch")
    from cdmpp.network.eager.runtime import EagerRuntime
    from cdmpp.network.predict import predict_network, predict_step
    from cdmpp.network.workload import Workload

    layer, sheet = torch.nn.Linear(6_000, 6_000, bias=False), devices.get("l4")
    small = replace(sheet, spec={**sheet.spec, "memory_gb": 0.5})
    begin = "WARNING: it holds "
    for device, told in ((sheet, False), (small, True)):
        step = Workload(layer, torch.randn(1, 6_000), loss="mse")
        found = predict_step(step, device, EagerRuntime()).to_dict()["warnings"]
        assert bool(found and found[0].startswith(begin)) is told
    run = predict_network(Workload(layer, torch.randn(1, 6_000)), small, EagerRuntime())
    assert not any(one.startswith(begin) for one in run.warnings)

"""`cdmpp compare` and `cdmpp.compare_devices`: several devices, and those without an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import cdmpp
from cdmpp import cli, devices
from cdmpp.errors import CdmppError
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.report.comparison import comparison_report
from cdmpp.report.html import html_page, notebook_html
from tests.network.example_prediction import example, kernels

FACTORS = {"a100": 1.0, "h200": 0.45, "xeon-icelake": 38.0, "t4": 2.6}
NO_MODEL = "no model trained on mi100 is here. Train one <b>or</b> name one with --model"


def predict(workload: cdmpp.Workload, device: str, *_: Any, **__: Any) -> NetworkPrediction:
    if workload.network == "missing.onnx":
        raise CdmppError("there is no file missing.onnx")
    if device not in FACTORS:
        raise CdmppError(NO_MODEL if device == "mi100" else f"unknown device {device}")
    used = [replace(kernel, latency_s=kernel.latency_s * FACTORS[device], intervals={}) for kernel in kernels()]
    warnings = ("the model cpus never saw t4, so it goes by its description.",) if device == "t4" else ()
    about = {"device": device, "model": device, "warnings": warnings, "by_datasheet": device == "t4"}
    return example(used, network=workload.network, batch=workload.batch or 1, **about)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    monkeypatch.setattr("cdmpp.network.comparison.predict_network", predict)


def test_the_fastest_comes_first_and_one_without_an_answer_keeps_its_reason():
    found = cdmpp.compare_devices(cdmpp.Workload("net", batch=8), devices=["a100", "mi100", "h200", "t4"])
    rows = found.table()
    assert [row["device"] for row in rows] == ["h200", "a100", "t4", "mi100"]
    assert rows[-1]["reason"] == NO_MODEL and rows[-1]["latency_s"] is None
    assert [row["by_datasheet"] for row in rows] == [False, False, True, False]
    first = rows[0]
    assert first["throughput_per_s"] == 8 / first["latency_s"]
    assert first["throughput_low_per_s"] == 8 / first["interval_high_s"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_answer_at_all_is_an_error():
    with pytest.raises(CdmppError, match=r"^there is no file missing.onnx$"):
        cdmpp.compare_devices("missing.onnx", devices=["a100", "h200"])
    with pytest.raises(CdmppError, match="mi100: no model.*; other: unknown"):
        cdmpp.compare_devices("net", devices=["mi100", "other"])
    with pytest.raises(CdmppError, match="no device to compare"):
        cdmpp.compare_devices("net", devices=[])
    with pytest.raises(CdmppError, match="devices says 'a100' twice"):
        cdmpp.compare_devices("net", devices=["a100", devices.get("a100").with_spec(memory_gb=80)])


def test_another_error_is_not_hidden(monkeypatch):
    monkeypatch.setattr("cdmpp.network.comparison.predict_network", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cdmpp.compare_devices("net", devices=["a100"])


def test_page_and_notebook():
    found = cdmpp.compare_devices("<i>net</i>", devices=["a100", "mi100", "t4"])
    report = comparison_report(found)
    page = html_page([report])
    assert "<i>net" not in page and "<b>or</b>" not in page and "&lt;b&gt;or" in page
    assert "datasheet only" in page and 'class="hollow"' in page and "never saw t4" in page
    shown = notebook_html(report).html
    assert "<script" not in shown and "mi100" in shown


def test_the_command_prints_a_table_and_says_doubts(capsys):
    assert cli.main(["compare", "net", "--devices", "a100, mi100,t4", "--batch", "8"]) == 0
    out, err = capsys.readouterr()
    assert "net, batch 8" in out and "datasheet only" in out and "no answer" in out and "80 % interval, low" in out
    assert f"cdmpp: mi100: {NO_MODEL}\n" in err and "cdmpp: t4: the model cpus never saw" in err


def test_json_and_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page, plot = tmp_path / "c.html", tmp_path / "c.png"
    files = ["--html", str(page), "--plot", str(plot)]
    assert cli.main(["compare", "net", "--devices", "a100,xeon-icelake,mi100", "--json", *files]) == 0
    out, err = capsys.readouterr()
    assert [row["device"] for row in json.loads(out)["devices"]] == ["a100", "xeon-icelake", "mi100"]
    assert plot.read_bytes().startswith(b"\x89PNG") and f"wrote {page}" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.html", "c.png"]


def test_refusals(workplace, refused):
    (workplace / "file").write_text("kept")
    assert "no model" in refused("compare", "net", "--devices", "mi100")
    assert "no device" in refused("compare", "net", "--devices", " ,")
    assert "ends in .png" in refused("compare", "net", "--devices", "a100", "--plot", "x.svg")
    assert "no folder" in refused("compare", "net", "--devices", "a100", "--html", "file/x.html")
    assert [path.name for path in workplace.iterdir()] == ["file"]

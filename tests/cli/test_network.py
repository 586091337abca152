"""`cdmpp network`: options, table, JSON, files and refusals, on a prediction made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cdmpp
from cdmpp import cli
from cdmpp.network.prediction import NetworkPrediction
from tests.network.example_prediction import example, kernels


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """No answer made by hand is kept for later questions."""
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "answers of this test"))


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, Any]]:
    """What ``predict_network`` was asked for; it answers with the example."""
    calls: list[dict[str, Any]] = []

    def predict(given: Any, example_inputs: Any = None, **options: Any) -> NetworkPrediction:
        calls.append({"given": given, **options})
        return example(network=given.network, device=options["device"])

    monkeypatch.setattr(cdmpp, "predict_network", predict, raising=False)
    return calls


def test_a_table_with_the_total_and_doubts_on_stderr(asked, capsys):
    assert cli.main(["network", "torchvision:resnet50", "--device", "a100", "--rows", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("torchvision:resnet50 on a100, batch 1, model a100, schedule best_of:16\n")
    assert "latency    1.584 ms (80 %: 1.36 - 1.85 ms)" in out and "throughput 631/s" in out
    assert "cold caches" in out and "weights 102 MB" in out and "80 % low" in out
    assert "18 more (--rows 0 shows all)" in out and "fused_conv2d8_batch_norm_relu" in out
    assert all(line.startswith("cdmpp: ") for line in err.splitlines()) and "launch overhead of a100" in err
    assert "2 of 21 kernels, 12% of the time: unlike training" in err and err.count("unlike training") == 1


def test_options_reach_the_prediction(asked, capsys):
    words = "network m.onnx --device a100 --batch 4 --input a=4,3,8,8 --input b=4,7 --precision fp16 --schedule untuned"
    assert cli.main([*words.split(), "--model", "mine", "--measure"]) == 0
    given = asked[0].pop("given")
    assert (given.network, given.batch, given.precision.name, given.mode) == ("m.onnx", 4, "fp16", "inference")
    assert given.inputs == {"a": (4, 3, 8, 8), "b": (4, 7)}
    assert asked == [
        {"device": "a100", "schedule": "untuned", "model": "mine", "measure": True, "progress": False}
    ]  # fmt: skip


def test_all_rows_and_markup_in_names(asked, monkeypatch, capsys):
    from dataclasses import replace

    odd = [replace(kernels()[0], name="[red]name[/red] \x1b[31m"), *kernels()[1:]]
    monkeypatch.setattr(cdmpp, "predict_network", lambda *_, **__: example(odd, network="[bold]x[/nothing]"))
    assert cli.main(["network", "x", "--device", "a100", "--rows", "0"]) == 0
    out = capsys.readouterr().out
    assert "[red]name[/red]" in out and "[bold]x[/nothing]" in out and "\x1b[31m" not in out
    assert "more (--rows" not in out and "плотный_слой_全結合" in out


def test_a_narrow_terminal_keeps_the_totals(asked, monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr("cdmpp.report.text.console", lambda: Console(width=80))
    assert cli.main(["network", "x", "--device", "a100"]) == 0
    out = capsys.readouterr().out
    assert "share" in out and "total" in out and "bound by" not in out


def test_json_is_alone_on_stdout(asked, tmp_path, capsys):
    assert cli.main(["network", "x", "--device", "a100", "--json", "--html", str(tmp_path / "r.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["kernels"]) == 21 and told["device"] == "a100"


def test_files_are_written_and_named(asked, tmp_path, capsys):
    files = {name: tmp_path / "new" / f"out.{name}" for name in ("csv", "timeline", "html")}
    given = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert cli.main(["network", "x", "--device", "a100", *given]) == 0
    err = capsys.readouterr().err
    assert all(path.is_file() and f"wrote {path}" in err for path in files.values())
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out.csv", "out.html", "out.timeline"]


def test_the_old_name_of_the_timeline_warns(asked, tmp_path, capsys):
    assert cli.main(["network", "x", "--device", "a100", "--trace", str(tmp_path / "line.json")]) == 0
    assert "--trace is now called --timeline" in capsys.readouterr().err
    assert json.loads((tmp_path / "line.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "0"], "--batch: '0' is given"),
        (["--rows", "-1"], "--rows"),
        (["--input", "1,3"], "NAME=SHAPE"),
        (["--input", "x=1,a"], "NAME=SHAPE"),
        (["--input", "x=0"], "NAME=SHAPE"),
        (["--input", "x=1", "--input", "x=2"], "once for each"),
        (["--html", "."], "it is a folder"),
        (["--csv", "file/out.csv"], "no folder"),
        (["--csv", "same", "--html", "same"], "same file name"),
    ],
)
def test_wrong_options_are_refused_before_predicting(asked, workplace, refused, words, told):
    (workplace / "file").write_text("kept")
    assert told in refused("network", "x", "--device", "a100", *words)
    assert not asked and [path.name for path in workplace.iterdir()] == ["file"]


def test_help_says_that_a_python_file_is_run(capsys):
    with pytest.raises(SystemExit):
        cli.main(["network", "--help"])
    assert "RUNS that Python file" in " ".join(capsys.readouterr().out.split())

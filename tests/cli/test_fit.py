"""``cdmpp fit``: every form of its answer, and that a saved fit answers again."""

import csv
import json
from pathlib import Path

import pytest

from cdmpp import cli

RUNS = str(Path(__file__).parents[2] / "examples" / "runs.csv")
POINT = "gpus=16,nodes=4,batch=64,chunks=1,model=bert"


def test_a_table_becomes_an_answer_in_every_form(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["--csv", "a.csv", "--html", "a.html", "--save", "a.json", "--python", "a.py"]
    asked = ["--predict", f"{POINT};{POINT.replace('16', '32')}", "--suggest", "9"]
    assert cli.main(["fit", RUNS, "--group", "model", "--budget-s", "2", "--json", *asked, *files]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert [one["gpus"] for one in answer["predictions"]] == [16, 32]
    suggested = len(answer["suggestions"])
    assert (
        0 < suggested < 9
        and f"{suggested} of 9 runs are suggested: no other that can be made would shorten the intervals" in shown.err
    )
    assert "beyond the measured range of gpus, nodes" in shown.err
    assert abs(sum(answer["shares"]) - 1) < 1e-9 and len(answer["runs"]) == 48
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["gpus"] for row in rows] == ["16", "32"] and float(rows[0]["low_s"]) < float(rows[0]["time_s"])
    page = (tmp_path / "a.html").read_text()
    assert "step_s along gpus" in page and "Runs to make next" in page and "Before you trust this" in page
    compile((tmp_path / "a.py").read_text(), "a.py", "exec")
    assert cli.main(["fit", "a.json", "--predict", POINT, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["predictions"] == answer["predictions"][:1]
    Path("answer.json").write_text(shown.out)
    assert cli.main(["fit", "answer.json"]) == 2
    assert "it is an answer of --json; save the fit with --save" in capsys.readouterr().err
    assert cli.main(["fit", "a.json", "--predict", POINT]) == 0
    assert "expression step_s = " in capsys.readouterr().out


def test_what_a_reader_is_shown_names_the_point_and_is_short(tmp_path, capsys, monkeypatch):
    """At a small budget all known terms are taken: 16 of them, of which the largest are written out."""
    monkeypatch.chdir(tmp_path)
    words = ["fit", RUNS, "--group", "model", "--budget-s", "0.5", "--predict", POINT]
    assert cli.main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--rows", "0"]) == 0
    out = capsys.readouterr().out
    terms = len(answer["shares"])
    assert terms > 8 and f"{terms - 8} smaller terms" in out and f"{terms - 8} smaller ones are" in out
    assert out.count("gpus=16, nodes=4, batch=64, chunks=1, model=bert") >= 3
    assert "batch 1.00 fixed" in out and "gpus -1.00 fixed" in out and "none: a known form" in out
    assert "held out at random" in out and "runs drawn by lot, fitted without them" in out
    powers = {
        (place, name) for place, term in enumerate(answer["expression"]["terms"]) for name in term["product"]["powers"]
    }
    assert {(one["term"], one["factor"]) for one in answer["exponents"]} == powers


def test_names_with_commas_and_slashes_are_asked_for_in_quotes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f'"meta/llama, 7B;x",{gpus},{1 / gpus}' for gpus in (1, 2, 4, 8)]
    rows += [f"bert,{gpus},{2 / gpus}" for gpus in (1, 2, 4, 8)]
    Path("runs.csv").write_text("\n".join(["model,gpus,step_s", *rows]))
    point = 'gpus=4,model="meta/llama, 7B;x";gpus=4,model=bert'
    assert cli.main(["fit", "runs.csv", "--group", "model", "--budget-s", "0.2", "--predict", point, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["model"] for one in found] == ["meta/llama, 7B;x", "bert"]
    assert found[0]["time_s"] == pytest.approx(0.25, rel=0.1) and found[1]["time_s"] == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fit", RUNS, "--predict", "gpus=1"], "the point has no nodes"),
        (["fit", RUNS, "--predict", "gpus"], "expected names with values"),
        (["fit", RUNS, "--predict", "gpus=1,gpus=2"], "gpus is there twice"),
        (["fit", RUNS, "--factors", "gpus,model"], "'bert' is no number; a column of texts can be a group"),
        (["fit", RUNS, "--factors", "gpus,,batch"], "expected names of columns"),
        (["fit", RUNS, "--plot", "a.jpg"], "its name ends in .png"),
        (["fit", RUNS, "--save", RUNS], "the same command reads it"),
        (["fit", RUNS, "--save", "a.txt"], "its name ends in .json"),
        (["fit", RUNS, "--predict", "gpus=1_6,nodes=1,batch=8,chunks=1"], "gpus of the point is '1_6'"),
        (["fit", RUNS, "--predict", "gpus=1e300,nodes=1,batch=8,chunks=1"], "gpus of the point is '1e300'"),
        (["fit", RUNS, "--predict", "gpus=2,nodes=4,batch=8,chunks=1"], "nodes=4, gpus=2 contradict each other"),
        (["fit", RUNS, "--predict", "gpus=2.5,nodes=1,batch=8,chunks=1"], "gpus is 2.5: expected a whole number"),
        (["fit", RUNS, "--predict", "model=a,b"], "a value with a comma in quotes"),
        (["fit", "none.csv"], "cannot read none.csv"),
        (["fit", "none.json", "--seed", "1"], "--seed does not go with none.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert told in capsys.readouterr().err

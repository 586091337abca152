"""`cdmpp predict` of stored ASTs: the numbers of the library, intervals, warnings, one-line errors."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

import cdmpp
from cdmpp import cli
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.units import quantity


def test_predict_stored_asts_equals_the_library(workplace, asts, model, capsys):
    write_asts(workplace / "asts.parquet", [f"program{i}" for i in range(30)], asts)
    command = ["predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(model)]
    assert cli.main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = cdmpp.load_model(model).predict(asts).latency_s
    assert [row["program"] for row in answer["programs"]] == [f"program{i}" for i in range(30)]
    np.testing.assert_allclose([row["latency_s"] for row in answer["programs"]], expected, rtol=1e-6)

    assert cli.main([*command, "--rows", "3"]) == 0
    table = capsys.readouterr().out
    fastest = np.argsort(expected)
    assert [i for i in range(30) if f"program{i} " in table] == sorted(fastest[:3])
    assert quantity(expected[fastest[0]], "s", 4) in table and "27 more (--rows 0" in table


def test_predict_shows_intervals_and_programs_unlike_the_training_ones(workplace, asts, calibrated_model, capsys):
    strange = dataclasses.replace(asts[0], leaf_features=asts[0].leaf_features + 50)
    write_asts(workplace / "asts.parquet", ["usual", "strange"], AstTable.from_asts([asts[0], strange]))
    command = ["predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(calibrated_model)]
    assert cli.main([*command, "--json"]) == 0
    usual, odd = json.loads(capsys.readouterr().out)["programs"]
    assert usual["intervals_s"]["0.8"][0] <= usual["latency_s"] <= usual["intervals_s"]["0.8"][1]
    assert usual["intervals_s"]["0.9"][1] >= usual["intervals_s"]["0.8"][1]
    assert odd["unlike_training"] and not usual["unlike_training"] and odd["novelty"] == 1
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("80 % interval, low" in line for line in lines)
    assert ["unlike training" in line for line in lines if "strange" in line or "usual" in line].count(True) == 1
    low, high = (quantity(bound, "s", 4) for bound in usual["intervals_s"]["0.8"])
    assert any(low in line and high in line for line in lines)


def test_predict_warns_when_the_model_never_saw_the_device(workplace, asts, model, capsys):
    write_asts(workplace / "asts.parquet", [str(i) for i in range(30)], asts)
    assert cli.main(["predict", "asts.parquet", "--device", "epyc-7452", "--model", str(model), "--json"]) == 0
    assert "never saw epyc-7452" in capsys.readouterr().err


def test_an_answer_that_is_no_number_is_refused(workplace, model, asts, refused):
    features = asts.leaf_features.copy()
    features[0] = np.nan
    write_asts(
        workplace / "nan.parquet", [f"p{i}" for i in range(30)], dataclasses.replace(asts, leaf_features=features)
    )
    said = refused("predict", "nan.parquet", "--device", "xeon-icelake", "--model", str(model), "--json")
    assert "1 of 30" in said or "NaN" in said


def test_predict_errors_are_one_line(workplace, model, refused):
    assert "nearest: a100" in refused("predict", "x.py", "--device", "a1000")
    assert "does not exist" in refused("predict", "x.py", "--device", "t4", "--model", str(model))
    assert "neither a model folder" in refused("predict", "x.py", "--device", "t4", "--model", "nowhere")
    assert "no model trained on hl-100 is here" in refused("predict", "x.py", "--device", "hl-100")
    (workplace / "x.onnx").write_text("")
    assert "x.onnx is neither" in refused("predict", "x.onnx", "--device", "t4", "--model", str(model))
    assert "no such folder: nowhere" in refused("data", "summary", "--path", "nowhere")


def test_damaged_asts_are_one_line(workplace, model, refused):
    (workplace / "asts.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert "asts.parquet" in refused("predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(model))

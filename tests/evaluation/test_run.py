"""Cells: one small file each, continued, merged, the same in parallel processes as in one."""

from __future__ import annotations

import json

import pytest
import torch

from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.evaluation import formulas, run
from cdmpp.evaluation.bundle import save_bundle
from cdmpp.evaluation.cell import Cell, CellOptions, read_predictions, run_cell
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.evaluation.report import test_table as table_of
from cdmpp.evaluation.report import write_report
from cdmpp.evaluation.rows import collect, result_rows, update_results
from cdmpp.evaluation.run import evaluate, main, score_baselines

QUICK = ["constant", "roofline"]


def test_evaluate_writes_cells_and_continues(data, tmp_path, monkeypatch):
    options = CellOptions(tmp_path, command="here")
    rows = evaluate(data, "a100", ["random", "by_task"], [0, 1], QUICK, options, progress=False)
    assert {(r.split, r.seed, r.model) for r in rows} == {
        (s, d, m) for s in ("random", "by_task") for d in (0, 1) for m in QUICK
    }
    first = next(r for r in rows if r.metric == "mape")
    assert (first.device, first.dataset, first.command) == ("a100", "a100", "here") and first.value > 0
    monkeypatch.setattr(formulas.Constant, "fit", lambda *_: pytest.fail("a finished cell was computed again"))
    assert evaluate(data, "a100", ["random"], [0, 1], ["constant"], options, progress=False) == rows


def test_other_data_makes_a_cell_stale(data, tmp_path):
    cell, options = Cell("random", 0, "constant"), CellOptions(tmp_path)
    first = run_cell(data, "x", cell, options)
    from dataclasses import replace

    slower = EvaluationData(replace(data.dataset, latency_s=2 * data.dataset.latency_s))
    assert run_cell(slower, "x", cell, options)["fingerprint"] != first["fingerprint"]


def test_a_mean_of_models_reads_their_cells(data, tmp_path):
    options = CellOptions(tmp_path)
    evaluate(data, "x", ["by_task"], [0], ["constant+roofline", *QUICK], options, progress=False)
    paths = [Cell("by_task", 0, model).path(tmp_path, "x") for model in (*QUICK, "constant+roofline")]
    a, b, mean = (read_predictions(path)["predicted_s"] for path in paths)
    assert mean == pytest.approx((a * b) ** 0.5)


def test_processes_give_the_same_figures(data, tmp_path):
    one = evaluate(data, "x", ["by_task"], [0], QUICK, CellOptions(tmp_path / "one"), progress=False)
    two = evaluate(data, "x", ["by_task"], [0], QUICK, CellOptions(tmp_path / "two"), jobs=2, progress=False)
    assert [(r.model, r.metric) for r in one] == [(r.model, r.metric) for r in two]
    assert [r.value for r in one] == pytest.approx([r.value for r in two], rel=1e-4)


def test_cells_in_this_process_keep_to_their_threads(data, tmp_path, monkeypatch):
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(run, "run_cell", lambda *_: seen.append(torch.get_num_threads()))
    for threads in (1, 2):
        evaluate(data, "x", ["random"], [0], ["constant"], CellOptions(tmp_path, threads), progress=False)
    assert seen == [1, 2] and torch.get_num_threads() == before


def test_a_failing_cell_is_named_and_the_others_are_kept(data, tmp_path):
    bare = EvaluationData(data.dataset)
    with pytest.raises(DataError, match=r"1 of 2 cells failed.*xgb_per_store"):
        evaluate(bare, "x", ["random"], [0], ["constant", "xgb_per_store"], CellOptions(tmp_path), progress=False)
    assert [cell["model"] for cell in collect(tmp_path)] == ["constant"]


def test_command_line_from_a_bundle(data, tmp_path, capsys):
    save_bundle(tmp_path / "bundle", data, "x")
    main(["--bundle", str(tmp_path / "bundle"), "--out", str(tmp_path), "--cells", "random/0/constant"])
    assert collect(tmp_path, "x")[0]["n_programs"] > 0
    with pytest.raises(SystemExit, match="split/seed/model"):
        main(["--bundle", str(tmp_path / "bundle"), "--out", str(tmp_path), "--cells", "random"])


def test_report_of_two_data_sets(data, tmp_path):
    docs = tmp_path / "docs"
    for name in ("a100", "xeon"):
        evaluate(
            data, name, ["by_task"], [0, 1], QUICK, CellOptions(tmp_path / name, command=f"run {name}"), progress=False
        )
        write_report(collect(tmp_path / name), docs, {name: NoiseFloor(10, 0.8, 0.6, 1.5)}, {name: ["images/m.png"]})
    text = (docs / "RESULTS.md").read_text()
    assert "## a100" in text and "## xeon" in text and "0.80 % mean" in text and "`run xeon`" in text
    assert "| roofline | 2 |" in text and "±" in text and "conv2d (n=" in text and "nan" not in text.lower()
    rows = json.loads((docs / "results.json").read_text())
    assert {row["dataset"] for row in rows} == {"a100", "xeon"}
    assert set(rows[0]) == {
        "device", "dataset", "split", "seed", "model", "metric", "value", "n_programs", "n_tasks", "command", "date",
    }  # fmt: skip


def test_results_are_replaced_by_cell(data, tmp_path):
    run_cell(data, "x", Cell("random", 0, "constant"), CellOptions(tmp_path))
    rows = result_rows(collect(tmp_path))
    for _ in range(2):
        update_results(tmp_path / "results.json", rows)
    assert len(json.loads((tmp_path / "results.json").read_text())) == len(rows)


def test_results_of_other_data_stay_and_older_ones_of_the_same_go(data, tmp_path):
    for name, model in (("x", "constant"), ("y", "constant")):
        run_cell(data, name, Cell("random", 0, model), CellOptions(tmp_path / model))
    update_results(tmp_path / "results.json", result_rows(collect(tmp_path / "constant")))
    run_cell(data, "x", Cell("random", 0, "roofline"), CellOptions(tmp_path / "roofline"))
    update_results(tmp_path / "results.json", result_rows(collect(tmp_path / "roofline")))
    kept = json.loads((tmp_path / "results.json").read_text())
    assert {(row["dataset"], row["model"]) for row in kept} == {("x", "roofline"), ("y", "constant")}


def test_terminal_table(data):
    split = make_split(data.dataset, "random", 0)
    metrics = score_baselines(data.dataset, split, QUICK)
    table = table_of(metrics, len(split.test), 3)
    assert table.row_count == 2 and "MAPE" in str(table.columns[1].header)

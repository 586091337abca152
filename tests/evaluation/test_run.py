"""Cells: one small file each, continued, merged, the same in parallel processes as in one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cdmpp.data.splits import make_split
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation import formulas, run
from cdmpp.evaluation.baselines import score_baselines
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.results import collect
from cdmpp.evaluation.run import cell_request, evaluate, run_cell
from cdmpp.evaluation.worker import compute_cell

QUICK = ["constant", "roofline"]


def test_evaluate_writes_cells_and_continues(data, tmp_path, monkeypatch):
    options = CellOptions(tmp_path, command="here")
    rows = evaluate(data, "a100", ["random", "by_task"], [0, 1], QUICK, options, progress=False)
    assert {(r.split, r.seed, r.model) for r in rows} == {
        (s, d, m) for s in ("random", "by_task") for d in (0, 1) for m in QUICK
    }
    first = next(r for r in rows if r.metric == "mape")
    assert (first.device, first.dataset, first.run.command) == ("a100", "a100", "here") and first.value > 0
    monkeypatch.setattr(formulas.Constant, "fit", lambda *_: pytest.fail("a finished cell was computed again"))
    assert evaluate(data, "a100", ["random"], [0, 1], ["constant"], options, progress=False) == rows


def test_other_data_makes_a_cell_stale(data, tmp_path):
    cell, options = Cell("random", 0, "constant"), CellOptions(tmp_path)
    first = run_cell(data, "x", cell, options)
    slower = EvaluationData(replace(data.dataset, latency_s=2 * data.dataset.latency_s))
    assert run_cell(slower, "x", cell, options)["fingerprint"] != first["fingerprint"]


def test_other_devices_make_a_cell_stale(data, tmp_path):
    """The figures depend on which programs compete."""
    cell, options, names = Cell("random", 0, "constant"), CellOptions(tmp_path), data.dataset.devices.copy()
    names[::2] = "v100"
    mixed = [replace(data.dataset, devices=devices) for devices in (names, names[::-1])]
    prints = {cell.fingerprint(dataset, options) for dataset in (data.dataset, *mixed)}
    assert len(prints) == 3


def test_a_stored_model_is_only_tested(data, tmp_path):
    trained = CellOptions(tmp_path / "a", overrides=("trainer.epochs=1", "model.layers=1"))
    first = run_cell(data, "x", Cell("by_task", 0, "cdmpp"), trained)
    folder = Cell("by_task", 0, "cdmpp").model_folder(tmp_path / "a", "x") / "model"
    cell, options = Cell("by_task", 0, "mine"), CellOptions(tmp_path / "b", stored={"mine": str(folder)})
    second = run_cell(data, "x", cell, options)
    assert second["metrics"] == first["metrics"] and not (tmp_path / "b" / "models").exists()
    card = folder / "config.json"
    card.write_text(card.read_text().replace('"log_shift": ', '"log_shift": 0'))
    assert cell.fingerprint(data.dataset, options) != second["fingerprint"]  # another model of that name
    with pytest.raises(CdmppError, match="neither a model folder"):
        run_cell(data, "x", cell, replace(options, stored={"mine": str(tmp_path)}))


def test_processes_give_the_same_figures(data, tmp_path):
    one = evaluate(data, "x", ["by_task"], [0], QUICK, CellOptions(tmp_path / "one"), progress=False)
    two = evaluate(data, "x", ["by_task"], [0], QUICK, CellOptions(tmp_path / "two"), jobs=2, progress=False)
    assert [(r.model, r.metric) for r in one] == [(r.model, r.metric) for r in two]
    assert [r.value for r in one] == [r.value for r in two]


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


def test_an_error_of_ours_leaves_a_log_and_the_others(data, tmp_path, monkeypatch):
    monkeypatch.setattr(formulas.Constant, "predict", lambda *_: 1 / 0)
    with pytest.raises(DataError, match=r"1 of 2 cells failed.*logs/x-random-0-constant\.log"):
        evaluate(data, "x", ["random"], [0], QUICK, CellOptions(tmp_path), progress=False)
    assert "ZeroDivisionError" in (tmp_path / "logs" / "x-random-0-constant.log").read_text()
    assert [cell["model"] for cell in collect(tmp_path)] == ["roofline"]


def test_a_killed_process_is_told_in_a_line(data, tmp_path, monkeypatch):
    killed = (
        "import os, signal, sys; from cdmpp.platform.workers import serve; "
        "serve({'ready': lambda _: {}, 'cell': lambda _: os.kill(os.getpid(), signal.SIGKILL)})"
    )
    monkeypatch.setattr(run, "COMMAND", ("-c", killed))
    with pytest.raises(DataError, match="2 of 2 cells failed.*was killed, often for want of memory"):
        evaluate(data, "x", ["random"], [0], QUICK, CellOptions(tmp_path), jobs=2, progress=False)
    assert list(tmp_path.iterdir()) == []  # nor is the data left


def test_a_missing_folder_of_data_is_told(data, tmp_path):
    request = cell_request(tmp_path / "data", "x", Cell("random", 0, "constant"), CellOptions(tmp_path))
    with pytest.raises(CdmppError, match="does not see .*data: .* need an out= folder that all share"):
        compute_cell(request)


def test_baselines_beside_a_training_run(data):
    split = make_split(data.dataset, "random", 0)
    metrics = score_baselines(data.dataset, split, QUICK)
    assert list(metrics) == QUICK and metrics["roofline"]["mape"] > 0

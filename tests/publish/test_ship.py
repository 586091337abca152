"""A shipped model is the evaluated one with its test figures; nothing too large or half-written enters the package."""

from __future__ import annotations

import numpy as np
import pytest

import cdmpp
from benchmarks.publish import ship as module
from benchmarks.publish.ship import ship
from cdmpp import devices
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.run import run_cell
from cdmpp.recipes.left_out import LeftOut
from cdmpp.uncertainty.calibration import LOCAL_INPUTS
from cdmpp.uncertainty.unseen import UnitErrors

CELL = Cell("by_task", 0, "cdmpp")


@pytest.fixture(scope="module")
def evaluated(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation")
    run_cell(data, "a100", CELL, CellOptions(out, overrides=("trainer.epochs=1", "model.layers=1")))
    return out


def test_a_shipped_model_answers_as_in_its_evaluation(data, evaluated, tmp_path):
    folder = ship(evaluated, "a100", CELL, "a100", tmp_path / "shipped")
    model = cdmpp.load_model(folder)
    test = make_split(data.dataset, "by_task", 0).test
    stored = np.load(CELL.path(evaluated, "a100").with_suffix(".npz"), allow_pickle=False)["predicted_s"]
    answers = model.predict(data.dataset.asts.take(test)).latency_s
    np.testing.assert_allclose(answers, stored, rtol=2e-3)  # matrices ship in half precision
    original = evaluated / "models" / "a100" / str(CELL) / "model"
    np.testing.assert_allclose(
        cdmpp.load_model(original).predict(data.dataset.asts.take(test)).latency_s, stored, rtol=1e-5
    )
    sizes = [(place / "model.safetensors").stat().st_size for place in (folder, original)]
    assert sizes[0] < 0.75 * sizes[1]
    card = model.card
    assert card["test"]["split"] == "by_task" and card["test"]["metrics"]["mape"] > 0 and card["limits"]
    assert card["noise_floor_percent"] == {"a100": {"n_programs": 7, "mean": 0.8, "median": 0.6, "p90": 1.5}}
    assert '"/' not in (folder / "card.json").read_text()
    assert ship(evaluated, "a100", CELL, "a100", tmp_path / "shipped") == folder  # replaces it
    assert [path.name for path in (tmp_path / "shipped").iterdir()] == ["a100"]


def test_a_model_of_several_cores_learns_what_unknown_ones_cost(evaluated, tmp_path, monkeypatch):
    asked = []
    found = {
        unit: LeftOut(
            {"mape": 20.0 + i, "median_ape": 10.0},
            UnitErrors(np.linspace(-0.5, 0.4, 50), np.zeros((50, LOCAL_INPUTS)), np.arange(50).astype(str)),
        )
        for i, unit in enumerate(("ice_lake", "zen4"))
    }
    several = cdmpp.load_model(evaluated / "models" / "a100" / str(CELL) / "model")
    several.trained_on = {name: devices.get(name) for name in ("xeon-icelake", "epyc-genoa")}
    monkeypatch.setattr(module, "load", lambda _: several)
    monkeypatch.setattr(module, "load_devices", lambda names, data, features: names)
    monkeypatch.setattr(module, "leave_cores_out", lambda *what: asked.append(what) or found)
    shipped = cdmpp.load_model(ship(evaluated, "a100", CELL, "several", tmp_path))
    assert asked[0][:2] == (["epyc-genoa", "xeon-icelake"],) * 2
    assert shipped.unseen.units["zen4"] == {"mape": 21.0, "median_ape": 10.0}
    assert "zen4 21 % (median 10)" in shipped.unseen.expected("epyc-9005")


def test_what_is_too_large_stays_outside(evaluated, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_MODEL_BYTES", 1000)
    with pytest.raises(DataError, match=r"at most 0.001 MB each"):
        ship(evaluated, "a100", CELL, "a100", tmp_path)
    monkeypatch.setattr(module, "MAX_MODEL_BYTES", 10**9)
    ship(evaluated, "a100", CELL, "first", tmp_path)
    monkeypatch.setattr(module, "MAX_ALL_BYTES", 1000)
    with pytest.raises(DataError, match=r"in all may ship"):
        ship(evaluated, "a100", CELL, "second", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_name_stays_inside_the_package(evaluated, tmp_path):
    for name in ("../elsewhere", "a/b", "", ".hidden"):
        with pytest.raises(DataError, match="cannot name a shipped model"):
            ship(evaluated, "a100", CELL, name, tmp_path / "shipped")
    assert not list(tmp_path.iterdir())


def test_a_cell_that_was_not_run_is_named(evaluated, tmp_path):
    with pytest.raises(DataError, match=r"held_out/0/cdmpp\.json is missing: run `cdmpp model evaluate`"):
        ship(evaluated, "a100", Cell("held_out", 0, "cdmpp"), "a100", tmp_path)

"""What ``cdmpp model evaluate`` is asked for reaches the cells and the tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.learned import train_config
from cdmpp.evaluation.results import read_results
from cdmpp.evaluation.session import EvaluationSettings, run_session
from tests.toy_data import write_toy_dataset

CONF = Path(__file__).parents[2] / "conf"


def sheet(name):
    return yaml.safe_load((CONF / "device" / f"{name}.yaml").read_text())


def settings(tmp_path, **changes):
    values = yaml.safe_load((CONF / "evaluate.yaml").read_text())
    values = {key: value for key, value in values.items() if key not in ("defaults", "hydra")}
    values |= {"device": sheet("a100"), "data": {"path": ["datasets"]}, "out": str(tmp_path / "out")}
    return EvaluationSettings.from_dict({**values, **changes})


def test_from_records_to_tables_without_tvm(tmp_path, monkeypatch, capsys):
    write_toy_dataset(tmp_path / "data" / "old")
    write_toy_dataset(tmp_path / "data" / "new", device="xeon-icelake-avx2", factor=1.7, prefix="new-")
    monkeypatch.setitem(sys.modules, "tvm", None)
    monkeypatch.setattr(sys, "argv", ["cdmpp", "models=[constant]"])
    two = {
        "device": sheet("xeon-icelake-avx2"),
        "sources": ["xeon-icelake"],
        "data": {"path": [str(tmp_path / "data")]},
    }
    run_session(settings(tmp_path, **two, splits=["by_task"], seeds=[0, 1], models=["constant"], name="made-up"))
    printed = capsys.readouterr().out
    assert "made-up, by_task: mean of 2 seeds" in printed and "constant" in printed
    figures = read_results(tmp_path / "out")
    assert {(figure.model, figure.device) for figure in figures} == {("constant", "xeon-icelake+xeon-icelake-avx2")}
    assert {figure.run.command for figure in figures} == {"cdmpp model evaluate 'models=[constant]'"}


def test_a_single_split_needs_no_list(tmp_path):
    assert settings(tmp_path, splits="random").splits == ("random",)


def test_programs_of_another_kind_are_left_alone(tmp_path):
    write_toy_dataset(tmp_path / "data")
    asked = {"device": sheet("xeon-icelake"), "data": {"path": [str(tmp_path / "data")]}, "features": "library"}
    with pytest.raises(DataError, match=r"no measured framework operators of device xeon-icelake[\s\S]*runtime=torch"):
        run_session(settings(tmp_path, **asked, splits=["by_task"], models=["constant"]))


def test_an_unread_key_is_an_error(tmp_path):
    with pytest.raises(CdmppError, match="unknown setting job; did you mean jobs"):
        settings(tmp_path, job=2)


def test_overrides_reach_the_model_they_name():
    overrides = ["trainer.epochs=3", "cdmpp:model.layers=1", "reference:trainer.epochs=2"]
    ours, reference = (train_config(name, overrides) for name in ("cdmpp", "reference"))
    assert (ours.trainer.epochs, ours.model.layers) == (3, 1)
    assert (reference.trainer.epochs, reference.model.name) == (2, "reference")
    assert reference.loss.label_mse_weight == 1000.0


def test_an_unknown_model_lists_the_known():
    with pytest.raises(DataError, match="xgb_ours.*reference"):
        train_config("resnet")


def test_every_variant_is_a_model_of_its_own(tmp_path):
    variants = settings(tmp_path).options.variants
    default = train_config("cdmpp")
    for name in variants:
        assert train_config(name, (), variants) != default, name
    assert train_config("no_code", ["no_code:trainer.epochs=3"], variants).trainer.epochs == 3

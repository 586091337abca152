"""What evaluate.py is asked for reaches the cells and the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.bundle import save_bundle
from cdmpp.evaluation.learned import train_config
from cdmpp.evaluation.session import EvaluationSettings, run_session

CONF = Path(__file__).parents[2] / "conf"


def settings(tmp_path, **changes):
    values = yaml.safe_load((CONF / "evaluate.yaml").read_text())
    values = {key: value for key, value in values.items() if key not in ("defaults", "hydra")}
    values |= {"device": {"name": "a100"}, "data": {"path": ["datasets"]}, "out": str(tmp_path / "out")}
    return EvaluationSettings.from_dict({**values, **changes})


def test_from_a_bundle_to_the_documents(data, tmp_path):
    save_bundle(tmp_path / "b", data, "made-up")
    docs = tmp_path / "docs"
    chosen = settings(
        tmp_path, bundle=str(tmp_path / "b"), docs=str(docs), splits=["by_task"], seeds=[0], models=["constant"]
    )
    run_session(chosen)
    text = (docs / "RESULTS.md").read_text()
    assert "### made-up: by_task" in text and "Noise floor" in text and "images/made-up-mape.png" in text
    assert (docs / "images" / "made-up-mape.png").is_file()
    assert json.loads((docs / "results.json").read_text())[0]["model"] == "constant"


def test_a_single_split_needs_no_list(tmp_path):
    assert settings(tmp_path, splits="random").splits == ("random",)


def test_an_unread_key_is_an_error(tmp_path):
    with pytest.raises(CdmppError, match="unknown settings job;"):
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

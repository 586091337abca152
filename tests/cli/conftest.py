"""A small model, stored ASTs, and an empty place to run commands in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cdmpp
from cdmpp import cli, devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.predict.predictor import Predictor
from cdmpp.uncertainty.calibration import calibrate
from tests.toy_data import toy_ast


@pytest.fixture(scope="session")
def asts() -> AstTable:
    rng = np.random.default_rng(0)
    return AstTable.from_asts([toy_ast(rng) for _ in range(30)])


@pytest.fixture(scope="session")
def model(asts, tmp_path_factory) -> Path:
    """A small untrained model: its answers are arbitrary, but the same through every door."""
    device = devices.get("xeon-icelake")
    torch.manual_seed(0)  # whatever tests ran before
    tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * 30, np.linspace(1e-6, 1e-3, 30))
    small = model_config({"name": "cdmpp", "width": 16, "layers": 1, "heads": 2, "feedforward": 16, "hidden": 16})
    folder = tmp_path_factory.mktemp("work") / "models" / "small"
    Predictor([build_for(small, tensors, np.arange(30))], {device.name: device}).save(folder)
    return folder


@pytest.fixture(scope="session")
def calibrated_model(model, asts, tmp_path_factory) -> Path:
    predictor, device = cdmpp.load_model(model), devices.get("xeon-icelake")
    tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * 30)
    seen, tasks = predictor.examine(tensors, np.arange(30)), [f"task{i // 2}" for i in range(30)]
    measured = seen.log_prediction + np.linspace(-0.3, 0.3, 30)
    predictor.calibration = calibrate(seen, seen, measured, tasks, ["cpu/xeon-icelake"] * 30)
    folder = tmp_path_factory.mktemp("work") / "calibrated"
    predictor.save(folder)
    return folder


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """An empty working folder without data or models, whatever the machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CDMPP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """The one line on stderr of a command that must end with exit code 2 and print nothing else."""

    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("cdmpp: ") and err.count("\n") == 1
        return err

    return run

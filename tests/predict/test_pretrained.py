"""The models in the package: small, honest cards, the answers they gave when they were shipped.

After shipping other models ``python tests/predict/test_pretrained.py`` rewrites the golden answers: read what differs.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import cdmpp
from benchmarks.publish.ship import MAX_ALL_BYTES, MAX_MODEL_BYTES
from cdmpp import devices
from cdmpp.data.loading import load_dataset
from cdmpp.data.sources import load_devices
from cdmpp.data.splits import make_split
from cdmpp.errors import ModelFormatError
from cdmpp.operators.operator import EagerOperator
from cdmpp.predict.catalogue import SHIPPED, model_for, models
from cdmpp.predict.model_folder import pretrained_names
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.training.metrics import latency_metrics

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden_predictions.json"
NAMES = pretrained_names()
CALLS = (
    ("linear", "512x1024x4096"),
    ("bmm", "96x512x64x512"),
    ("conv2d", "16x128x128x28x3"),
    ("softmax", "8192x512"),
    ("layer_norm", "4096x1024"),
    ("add", "4096x1024"),
    ("linear", "4096x4096x4096", "float16"),
)


def answers(name: str) -> dict[str, list[float]]:
    """Device -> seconds of fixed programs: the first of its data set, or hand-written ones where none ships."""
    model, found = cdmpp.load_model(name), {}
    for device in model.trained_on:
        if model.features == "library":
            programs = [EagerOperator.parse(*call) for call in CALLS]
        elif (ROOT / "datasets" / device).is_dir():
            programs = load_dataset(ROOT / "datasets" / device, device).asts.take(np.arange(0, 1000, 100))
        else:
            pytest.importorskip("tvm")
            sys.path.insert(0, str(ROOT / "tests" / "ast"))
            import programs as written

            from cdmpp.ast.extract import extract

            names = [golden for golden in sorted(written.GOLDEN) if golden.endswith("_cuda")]
            programs = [extract(*written.GOLDEN[golden]()) for golden in names]
        found[device] = [float(f"{s:.6g}") for s in model.predict(programs, device).latency_s]
    return found


def test_models_ship():
    assert set(NAMES) >= {"a100", "cpus", "epyc-genoa", "torch-gpus", "xeon-icelake"}
    sizes = {name: sum(path.stat().st_size for path in (SHIPPED / name).iterdir()) for name in NAMES}
    assert max(sizes.values()) <= MAX_MODEL_BYTES and sum(sizes.values()) <= MAX_ALL_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_golden_predictions(name):
    golden = json.loads(GOLDEN.read_text())[name]
    found = answers(name)
    assert found.keys() == golden.keys()
    for device, expected in golden.items():
        assert found[device] == pytest.approx(expected, rel=1e-3), device


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_how_good_it_is(name):
    card = cdmpp.load_model(name).card
    assert card["test"]["metrics"]["mape"] > 0 and card["test"]["n_programs"] > 200
    assert card["limits"] and card["noise_floor_percent"] and card["created"] and card["cdmpp"]
    assert '"/' not in json.dumps(card), "a path of the machine that trained it"


@pytest.mark.parametrize("name", [name for name in NAMES if (ROOT / "datasets" / name).is_dir()])
def test_the_figures_in_the_card_can_be_had_again(name):
    model = cdmpp.load_model(name)
    figures = model.card["test"]
    dataset = load_devices(sorted(model.trained_on), (ROOT / "datasets",))
    test = make_split(dataset, figures["split"], figures["seed"]).test
    predicted, intervals = predict_rows_with_intervals(model, dataset, test)
    truth, tasks = dataset.latency_s[test], np.asarray(dataset.task_ids)[test]
    metrics = latency_metrics(truth, predicted, tasks, dataset.devices[test])
    assert metrics["mape"] == pytest.approx(figures["metrics"]["mape"], rel=2e-3)
    for level, (lower, upper) in intervals.items():
        inside = 100 * np.mean((truth >= lower) & (truth <= upper))
        assert inside == pytest.approx(figures["intervals"][str(level)]["coverage"], abs=0.3)


def test_the_figures_in_readme_are_those_of_the_cards(tmp_path):
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+|-) \| ([\d.]+) \|", text, re.M)
    shown = {name: figures for name, *figures in rows}
    for entry in models(tmp_path):
        if entry.name != "torch-gpus":
            figures = entry.summary()
            expected = [f"{figures['mape']:.1f}", f"{figures['median_ape']:.1f}"]
            order = figures["spearman_within_task"]  # of tasks with five programs, where there are some
            expected += ["-" if order is None else f"{order:.3f}", f"{figures['top1_regret']:.3f}"]
            assert shown.pop(entry.name) == expected
    assert not shown


def test_a_device_that_is_described_in_python_needs_no_file():
    here = [entry for entry in models() if entry.folder.parent == SHIPPED]
    mine = dataclasses.replace(devices.get("t4"), name="my-gpu")
    assert model_for(mine, here).name == "a100"
    assert model_for(mine, here, "library").name == "torch-gpus"
    with pytest.raises(ModelFormatError, match="no model trained on my-chip"):
        model_for(dataclasses.replace(devices.get("mi100"), name="my-chip"), here)


def test_gpus_that_nobody_measured_are_answered_by_their_machine_code_or_not_at_all():
    here = [entry for entry in models() if entry.folder.parent == SHIPPED]
    assert {model_for(name, here).name for name in ("a100-80gb", "t4", "h100", "h200", "h100-pcie")} == {"a100"}
    for without_a_core in ("b200", "mi100", "apple-m1-gpu"):
        with pytest.raises(ModelFormatError, match=f"no model trained on {without_a_core}"):
            model_for(without_a_core, here)
    model = cdmpp.load_model("a100")
    low, high = model.unseen.bounds.levels[0.8]
    assert -1 < low < -0.1 and 0.1 < high < 1  # wider than what it promises of the device that it knows
    assert sorted(model.trained_on) == ["a100", "h100"] and "a100 18 %" in model.unseen.expected("h200")


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: answers(name) for name in NAMES}, indent=1) + "\n")

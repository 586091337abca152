"""The curve over budgets: every cell once, its figures as a page, what cannot be drawn said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.publish import sampling_curve as module
from benchmarks.publish.curve_report import summary
from benchmarks.publish.sampling_curve import Curve, sampling_curve
from cdmpp.data.records import write_tasks
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.results import read_results
from cdmpp.recipes.compose import compose
from cdmpp.recipes.finetune_settings import FinetuneSettings
from tests.toy_data import toy_dataset, write_toy_dataset

NEW = "xeon-icelake-avx2"
SMALL = [
    "model.width=32", "model.heads=4", "model.feedforward=32", "model.hidden=32", "model.layers=1",
    "trainer.epochs=3", "tuning.steps=5", "accelerator=cpu", "progress=false",
]  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> FinetuneSettings:
    write_toy_dataset(tmp_path / "data" / "old", 300)
    write_toy_dataset(tmp_path / "data" / "new", 300, NEW, factor=1.7, prefix="new-")
    given = [f"device={NEW}", f"data.path=[{tmp_path}/data]", f"out={tmp_path}/out"]
    return FinetuneSettings.from_dict(compose("finetune", [*SMALL, *given]))


def test_the_curve_has_every_cell_and_continues(settings, tmp_path, monkeypatch, capsys):
    out, docs, curve = tmp_path / "out", tmp_path / "docs", Curve((2, 4), (0, 1), ("random", "kmeans"))
    cells = sampling_curve(settings, curve, docs)
    assert len(cells) == 2 * (1 + 2 * 2)
    assert {cell["budget"] for cell in cells if cell["sampler"] == "kmeans"} == {2, 4}
    mapes = [c["metrics"]["mape"] for c in cells if (c["sampler"], c["budget"]) == ("random", 2)]
    assert summary(cells)["random"][2] == pytest.approx((np.mean(mapes), np.std(mapes)))
    assert (out / "curve.png").is_file() and "kmeans" in capsys.readouterr().out
    assert json.loads((out / "curve.json").read_text())["cells"] == json.loads(json.dumps(cells))
    by_seed = {c["seed"]: c["tasks"] for c in cells if (c["sampler"], c["budget"]) == ("random", 4)}
    assert by_seed[0] != by_seed[1]
    figures = [r for r in read_results(docs) if (r.split, r.model, r.metric) == ("2_tasks", "random", "mape")]
    assert sorted(figure.value for figure in figures) == pytest.approx(sorted(mapes))
    text = (docs / "results" / f"few-labels-{NEW}.md").read_text()
    assert f"| 2 | {np.mean(mapes):.1f} ± {np.std(mapes):.1f} |" in text
    assert len(list((docs / "images").glob("few-labels-*.png"))) == 1
    monkeypatch.setattr(module, "adapt", lambda *_, **__: pytest.fail("computed again"))
    assert sampling_curve(settings, curve) == cells


def test_more_tasks_than_there_are(settings):
    with pytest.raises(DataError, match="budget of 99"):
        sampling_curve(settings, Curve((99,), (0,), ("random",)))


@pytest.mark.parametrize(
    ("budgets", "seeds", "samplers", "message"),
    [((0, 5), (0,), ("random",), "at least 1"), ((5,), (), ("random",), "seeds"), ((5,), (0,), ("randon",), "random")],
)
def test_mistaken_settings_are_named(budgets, seeds, samplers, message):
    with pytest.raises(CdmppError, match=message):
        Curve(budgets, seeds, samplers)


def test_every_seed_is_tested_on_the_networks_held_out(settings, tmp_path, monkeypatch):
    dataset, _ = toy_dataset(300)
    other = [replace(task, networks={"other": 1}) for task in list(dataset.tasks.values())[:7]]
    write_tasks(tmp_path / "data" / "old", other)

    def scored(base, dataset, split):
        n_tasks = len(np.unique(dataset.task_ids[split.test]))
        return {"metrics": {"mape": 20.0}, "n_programs": len(split.test), "n_tasks": n_tasks}

    monkeypatch.setattr(module, "base_model", lambda *_: None)
    monkeypatch.setattr(module, "candidates", lambda *_: None)
    monkeypatch.setattr(module, "choose_tasks", lambda *_: ["task029"])
    monkeypatch.setattr(module, "_tuned", lambda settings, dataset, split, base, tasks: scored(base, dataset, split))
    monkeypatch.setattr(module, "_scored", scored)
    curve = Curve((1,), (0, 1), ("random",))
    assert {cell["n_tasks"] for cell in sampling_curve(settings, curve)} == {6}
    cells = sampling_curve(replace(settings, test_networks=("other",)), curve)  # the finished ones are of other tests
    assert {(cell["n_tasks"], *cell["test_networks"]) for cell in cells} == {(7, "other")}

"""What a model for a device without records is trained on, and what its error is told by."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.errors import NoRecordsError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.cpu.compile import can_have_code
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.predict.predictor import Predictor
from cdmpp.recipes import left_out, zero_shot
from cdmpp.recipes.compose import compose
from cdmpp.recipes.settings import RunSettings
from cdmpp.uncertainty.calibration import LOCAL_INPUTS
from cdmpp.uncertainty.unseen import UnitErrors
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset

SOURCES = ("xeon-icelake", "xeon-icelake-avx2")


def coded(dataset):
    codes = np.random.default_rng(0).uniform(0, 6, (len(dataset), CODE_WIDTH)).astype(np.float32)
    return replace(dataset, asts=dataset.asts.with_codes(codes))


def test_only_x86_cpus_have_code_vectors():
    able = {device.name for device in devices.all_devices() if can_have_code(device.target)}
    assert {"xeon-icelake", "epyc-9005", "e5-2673v4"} <= able
    assert not able & {"graviton2", "a64fx", "a100", "mi210", "apple-m1-gpu"}


class Recipe:
    """``train_zero_shot`` whose training only notes the folder and whether code vectors were there."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.dataset, self.trained = folder, coded(toy_dataset(120, devices=SOURCES)[0]), []
        monkeypatch.setenv("CDMPP_CACHE", str(folder / "cache"))
        monkeypatch.setattr(zero_shot, "source_devices", lambda *_: list(SOURCES))
        monkeypatch.setattr(RunSettings, "load", lambda _: self.dataset)
        for module in (zero_shot, left_out):
            monkeypatch.setattr(module, "train", self._train)
        monkeypatch.setattr(left_out, "_errors", self._errors)

    def _train(self, data, split, config, run):
        self.trained.append((run.out.name, data.asts.codes is not None))
        self.made = SimpleNamespace(card={}, save=lambda folder: None, reads_code=data.asts.codes is not None)
        return SimpleNamespace(predictor=self.made, model_dir=run.out)

    def _errors(self, _, data, rows):
        """Too slow by a factor of two, without machine code of three."""
        off = np.full(len(rows), -np.log(3 if data.asts.codes is None and self.made.reads_code else 2))
        return UnitErrors(off, np.zeros((len(rows), LOCAL_INPUTS)), data.task_ids[rows])

    def __call__(self, *overrides, device="epyc-7452", out="out"):
        """Names of the folders that were trained in, and what the card says."""
        words = [f"device={device}", "split=by_task", f"out={self.folder / out}", *overrides]
        settings = RunSettings.from_dict(compose("config", words))
        sources = zero_shot.zero_shot_sources(settings, NoRecordsError("none here"))
        self.trained.clear()
        *_, trained = zero_shot.train_zero_shot(replace(settings, sources=sources), "none here")
        return [name for name, _ in self.trained], trained.predictor.card["zero_shot"]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    return Recipe(tmp_path, monkeypatch)


@pytest.mark.parametrize(("device", "with_codes"), [("graviton2", False), ("epyc-7452", True)])
def test_the_error_of_an_arm_device_is_told_without_machine_code(device, with_codes, recipe):
    recipe(device=device)
    assert [codes for _, codes in recipe.trained] == [with_codes] * 3  # each source left out once, then all


def test_answers_without_machine_code_have_bounds_of_their_own(recipe):
    for _ in range(2):  # trained, then from the cache
        recipe()
        unseen = recipe.made.unseen
        for bounds, factor in ((unseen.bounds, 2), (unseen.without_code, 3)):
            low, high = bounds.intervals(np.zeros(1), np.zeros((1, LOCAL_INPUTS)))[0.8]
            assert low[0] == pytest.approx(1 / factor) and high[0] == 1
    recipe(device="graviton2")
    assert recipe.made.unseen.without_code is None


WITHOUT = [f"without-{name}" for name in SOURCES]


def test_what_is_known_of_devices_left_out_is_not_trained_again(recipe):
    first, told = recipe()
    assert first == [*WITHOUT, "out"] and told["left_out"]["xeon-icelake"]["mape"] == pytest.approx(100)
    again, as_before = recipe(out="elsewhere", device="epyc-9005")
    assert again == ["elsewhere"] and as_before["left_out"] == told["left_out"]
    assert as_before["error"] == told["error"].replace("epyc-7452", "epyc-9005")


@pytest.mark.parametrize("word", ["seed=1", "trainer.lr=0.002", "model.width=64"])
def test_other_settings_are_trained_for(recipe, word):
    recipe()
    assert recipe(word, out="again")[0] == [*WITHOUT, "again"]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: replace(data, latency_s=1.01 * data.latency_s),
        lambda data: replace(data, record_ids=np.char.add(data.record_ids, "x")),
        lambda data: replace(data, asts=data.asts.with_codes(data.asts.codes + 1)),
        lambda data: replace(data, asts=data.asts.with_codes(None)),
        lambda data: replace(data, tasks={t: replace(task, networks={"net": 2}) for t, task in data.tasks.items()}),
    ],
)
def test_other_data_are_trained_for(recipe, change):
    recipe()
    recipe.dataset = change(recipe.dataset)
    assert recipe(out="again")[0] == [*WITHOUT, "again"]


def test_another_datasheet_is_trained_for(recipe, monkeypatch):
    recipe()
    sheets = {name: devices.get(name) for name in SOURCES}
    changed = {name: replace(sheet, spec={**sheet.spec, "clock_mhz": 9999.0}) for name, sheet in sheets.items()}
    monkeypatch.setattr(left_out, "sheets_of", lambda _: changed)
    assert recipe(out="again")[0] == [*WITHOUT, "again"]


def test_a_damaged_result_is_found_anew(recipe):
    _, told = recipe()
    for path in (recipe.folder / "cache" / "left_out").iterdir():
        path.write_text("{}")
    assert recipe(out="again") == ([*WITHOUT, "again"], told)


def test_residuals_are_of_the_test_programs(recipe):
    settings = RunSettings.from_dict(compose("config", ["device=epyc-7452", f"out={recipe.folder}"]))
    what = recipe.dataset, list(SOURCES), settings.training, settings.run
    first, known = (left_out.leave_cores_out(*what) for _ in range(2))
    assert len(recipe.trained) == 2
    for name in SOURCES:
        np.testing.assert_allclose(
            first[name].errors.log_residuals, np.log(0.5)
        )  # measured is half of what is predicted
        np.testing.assert_array_equal(known[name].errors.log_residuals, first[name].errors.log_residuals)
        assert 0 < len(first[name].errors.log_residuals) < (recipe.dataset.devices == name).sum()


def test_what_the_others_promise_of_a_unit_is_checked_on_it():
    random = np.random.default_rng(0)

    def unit(scale, tasks=50):
        n = 10 * tasks
        return UnitErrors(scale * random.normal(size=n), random.normal(size=(n, LOCAL_INPUTS)), np.arange(n) % tasks)

    held = left_out.coverage_of({"a": unit(0.2), "b": unit(0.2), "c": unit(0.6)})
    a, b = held["a"]["0.8"], held["a"]["0.9"]
    assert held["c"]["0.8"]["coverage"] < 50 < 80 < a["task_coverage"] < 99.9
    assert b["coverage"] > a["coverage"] and b["width"] > a["width"]
    assert left_out.coverage_of({"a": unit(0.2), "b": unit(0.2)}) == {}


def test_nothing_is_left_out_where_the_error_is_not_wanted(recipe):
    trained, told = recipe("leave_one_out=false")
    assert trained == ["out"] and told["left_out"] == {}
    assert told["error"] == "Its error on epyc-7452 was not estimated (leave_one_out=false)"


def test_stored_code_vectors_do_not_answer_for_an_arm_device():
    dataset, _ = toy_dataset(60)
    both = coded(dataset)
    from cdmpp.data.batching import ProgramTensors

    sheet = {"xeon-icelake": devices.get("xeon-icelake")}
    tensors = ProgramTensors.build(both.asts, sheet, both.devices, both.latency_s)
    predictor = Predictor([build_for(model_config(SMALL), tensors, np.arange(60))], sheet)
    bare, with_code = (predictor.predict(data.asts, "graviton2").latency_s for data in (dataset, both))
    np.testing.assert_array_equal(bare, with_code)
    assert predictor.reads_code and not np.allclose(predictor.predict(both.asts).latency_s, bare)

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cdmpp
from cdmpp import devices
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import CdmppError, ModelFormatError, UnknownDeviceError
from cdmpp.predict import model_folder
from cdmpp.predict import predictor as predictor_module
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    dataset, split = toy_dataset(150)
    config = TrainConfig.from_dict({"model": SMALL, "trainer": {"epochs": 2, "batch_size": 32, "members": 2}})
    out = tmp_path_factory.mktemp("run")
    return dataset, train(dataset, split, config, Run(out, 0, False, "cpu"))


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained[1].model_dir, tmp_path / "model")


def test_loading_restores_the_predictions(trained, folder):
    dataset, result = trained
    loaded = cdmpp.load_model(folder)
    assert np.array_equal(loaded.predict(dataset.asts).latency_s, result.predictor.predict(dataset.asts).latency_s)
    assert loaded.card["split"]["name"] == "random"


def test_a_model_that_was_loaded_in_a_mode_of_torch_answers_in_it_and_after_it(trained, folder):
    dataset, result = trained
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        loaded = cdmpp.load_model(folder)
        within = loaded.predict(dataset.asts).latency_s
    expected = result.predictor.predict(dataset.asts).latency_s
    np.testing.assert_allclose(within, expected, rtol=1e-6)
    np.testing.assert_allclose(loaded.predict(dataset.asts).latency_s, expected, rtol=1e-6)


def test_a_shift_moves_every_answer_and_its_interval_alike_and_is_saved(folder, tmp_path):
    one, two = cdmpp.load_model(folder), cdmpp.load_model(folder)
    two.log_shift -= 0.25
    two.save(tmp_path / "shifted")
    shifted, asts = cdmpp.load_model(tmp_path / "shifted"), toy_dataset(30, seed=5)[0].asts
    assert shifted.log_shift == two.log_shift
    before, after = one.predict(asts), shifted.predict(asts)
    np.testing.assert_allclose(after.latency_s, np.exp(-0.25) * before.latency_s, rtol=1e-6)
    tensors = ProgramTensors.build(asts, one.trained_on, [next(iter(one.trained_on))] * 30)
    np.testing.assert_allclose(
        np.exp(shifted.examine(tensors, np.arange(30)).log_prediction), after.latency_s, rtol=1e-5
    )


@pytest.mark.parametrize("shift", ["much", float("nan"), float("-inf")])
def test_a_garbled_shift_is_named(folder, shift):
    _edit(folder, log_shift=shift)
    with pytest.raises(ModelFormatError, match=str(shift)):
        cdmpp.load_model(folder)


def test_batch_equals_one_by_one(trained):
    dataset, result = trained
    together = result.predictor.predict(dataset.asts).latency_s
    alone = [result.predictor.predict(dataset.asts[i]).latency_s[0] for i in range(len(dataset))]
    assert np.allclose(together, alone, rtol=1e-5, atol=0)


def test_accepts_tables_lists_and_single_asts(trained):
    dataset, result = trained
    asts = [dataset.asts[i] for i in range(3)]
    expected = result.predictor.predict(dataset.asts.take([0, 1, 2])).latency_s
    assert result.predictor.predict(asts, device="xeon-icelake").latency_s == pytest.approx(expected, rel=1e-5)
    assert len(result.predictor.predict(asts[0])) == 1


def test_intervals_and_novelty_come_with_the_prediction_and_survive_saving(trained, folder):
    dataset, result = trained
    ours, loaded = result.predictor.predict(dataset.asts), cdmpp.load_model(folder).predict(dataset.asts)
    assert tuple(ours.intervals) == (0.8, 0.9)
    for level, (lower, upper) in ours.intervals.items():
        assert (lower <= ours.latency_s).all() and (ours.latency_s <= upper).all() and (lower < upper).all()
        np.testing.assert_array_equal(loaded.intervals[level], (lower, upper))
    assert (ours.intervals[0.9][0] <= ours.intervals[0.8][0]).all()
    np.testing.assert_array_equal(loaded.novelty, ours.novelty)
    np.testing.assert_array_equal(loaded.unlike_training, ours.unlike_training)
    assert ours.unlike_training.dtype == bool and ours.unlike_training.mean() < 0.1
    card = loaded_card(folder)["intervals"]
    assert card["groups"]["all"]["tasks"] > 0 and "0.8" in card["groups"]["all"]["levels"]


def loaded_card(folder):
    return json.loads((folder / "card.json").read_text())


def test_intervals_of_a_batch_equal_those_of_one(trained):
    dataset, result = trained
    together = result.predictor.predict(dataset.asts)
    for i in (0, 7, 149):
        alone = result.predictor.predict(dataset.asts[i])
        for level in together.intervals:
            expected = [bound[i] for bound in together.intervals[level]]
            assert [bound[0] for bound in alone.intervals[level]] == pytest.approx(expected, rel=1e-4)
        assert alone.novelty[0] == pytest.approx(together.novelty[i], abs=1e-3)


def test_strange_inputs_are_called_unlike_training(trained):
    dataset, result = trained
    strange = replace(dataset.asts[0], leaf_features=dataset.asts[0].leaf_features + 50)
    prediction = result.predictor.predict([dataset.asts[0], strange])
    assert prediction.unlike_training[1] and prediction.novelty[1] == 1


def test_a_device_that_was_never_seen_has_no_intervals(trained):
    dataset, result = trained
    prediction = result.predictor.predict(dataset.asts, "epyc-9005")
    assert not prediction.intervals and prediction.novelty is not None


def test_models_saved_without_calibration_still_load(folder, trained):
    whole = trained[1].predictor
    bare = predictor_module.Predictor(whole.models, whole.trained_on, log_shift=whole.log_shift)
    bare.save(folder)
    loaded = cdmpp.load_model(folder)
    prediction = loaded.predict(trained[0].asts)
    assert loaded.calibration is None and not prediction.intervals
    assert prediction.novelty is None and prediction.unlike_training is None
    np.testing.assert_allclose(prediction.latency_s, whole.predict(trained[0].asts).latency_s)


def test_missing_calibration_tensors_are_named(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["calibration.novelty.grid"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match="grid"):
        cdmpp.load_model(folder)


def test_says_whether_the_device_was_trained_on(trained):
    dataset, result = trained
    assert result.predictor.predict(dataset.asts).trained_on_device
    assert not result.predictor.predict(dataset.asts, "epyc-9005").trained_on_device


def test_wrong_questions_get_clear_answers(trained):
    dataset, result = trained
    with pytest.raises(UnknownDeviceError, match="xeon-icelake"):
        result.predictor.predict(dataset.asts, "xeon-icelak")
    with pytest.raises(CdmppError, match="lowered for a cpu, but a100 is a gpu"):
        result.predictor.predict(dataset.asts, "a100")
    with pytest.raises(CdmppError, match="no program"):
        result.predictor.predict([])
    with pytest.raises(CdmppError, match="extractor version old"):
        result.predictor.predict([replace(dataset.asts[0], extractor_version="old")])


def test_several_devices_must_be_told_apart(trained):
    dataset, result = trained
    both = predictor_module.Predictor(
        result.predictor.models, {n: devices.get(n) for n in ("xeon-icelake", "epyc-9005")}
    )
    with pytest.raises(CdmppError, match="epyc-9005"):
        both.predict(dataset.asts)


def _edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_model_of_another_extractor_is_refused_with_what_to_do(folder):
    _edit(folder, extractor_version="0")
    with pytest.raises(ModelFormatError, match="version 0 .* Train again"):
        cdmpp.load_model(folder)


def test_model_of_another_format_or_width_is_refused(folder):
    _edit(folder, format_version=99)
    with pytest.raises(ModelFormatError, match="format version 99"):
        cdmpp.load_model(folder)
    _edit(folder, format_version=3, leaf_width=3)
    with pytest.raises(ModelFormatError, match="leaf width 3"):
        cdmpp.load_model(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damaged_files_are_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelFormatError, match=name):
        cdmpp.load_model(folder)


def test_a_missing_field_is_named(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["devices"]
    path.write_text(json.dumps(content))
    with pytest.raises(ModelFormatError, match="devices"):
        cdmpp.load_model(folder)


def test_missing_weights_and_unknown_names(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFormatError, match="model.safetensors"):
        cdmpp.load_model(folder)
    with pytest.raises(ModelFormatError, match="neither a model folder"):
        cdmpp.load_model("no-such-model")


def test_shipped_models_are_found_by_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(model_folder, "SHIPPED", tmp_path)
    assert model_folder.pretrained_names() == ["model"]
    assert cdmpp.load_model("model").trained_on


def test_works_without_tvm_hydra_and_lightning(trained, folder, tmp_path):
    asts = AstTable.from_asts([trained[0].asts[i] for i in range(4)])
    write_asts(tmp_path / "asts.parquet", list("abcd"), asts)
    code = f"""
import sys
for name in ("tvm", "hydra", "omegaconf", "lightning", "pytorch_lightning", "xgboost", "matplotlib"):
    sys.modules[name] = None
import cdmpp
from pathlib import Path
from cdmpp.ast.table import read_asts
asts = read_asts(Path({str(tmp_path / "asts.parquet")!r}))[1]
print(cdmpp.load_model({str(folder)!r}).predict(asts).latency_s.tolist())
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = trained[1].predictor.predict(asts).latency_s.tolist()
    assert json.loads(answer.stdout.splitlines()[-1]) == pytest.approx(expected, rel=1e-6)


def test_a_full_disk_while_saving_keeps_the_model_before(trained, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CdmppError, match="model.safetensors: No space left on device"):
        trained[1].predictor.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

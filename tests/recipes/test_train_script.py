"""The configuration as a whole, and ``scripts/train.py`` from records to a scored model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder
from cdmpp.predict.catalogue import model_for, models
from cdmpp.recipes.compose import GROUPS, compose
from cdmpp.recipes.settings import RunSettings
from cdmpp.training.config import TrainConfig
from tests.toy_data import toy_dataset, write_toy_dataset

ROOT = Path(__file__).parents[2]


def settings(*overrides: str) -> RunSettings:
    return RunSettings.from_dict(compose("config", overrides))


def test_the_default_configuration_is_complete():
    run = settings()
    assert run.device.name == "xeon-icelake" and run.split["name"] == "by_task" and run.training.model.name == "cdmpp"


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_folder() / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name):
    assert settings(f"experiment={name}", *(["target=xeon-icelake-avx2"] if name == "cross_device" else []))


@pytest.mark.parametrize("group", ["model", "loss", "trainer"])
def test_every_option_of_a_group_composes(group):
    for name in (*GROUPS[group], *(path.stem for path in (conf_folder() / group).glob("*.yaml"))):
        assert settings(f"{group}={name}")


def test_the_defaults_are_those_of_the_dataclasses():
    assert settings().training == TrainConfig()


def test_reference_experiment_is_the_published_one():
    training = settings("experiment=reference").training
    assert training.model.name == "reference" and training.loss.label_mse_weight == 1000
    assert training.trainer.schedule == "cyclic" and training.trainer.batch_size == 600


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+model.depth=3", "unknown setting model.depth"),
        ("model.widht=3", "unknown setting model.widht; did you mean width"),
        ("+data.root=x", "unknown setting data.root"),
        ("+colour=red", "unknown setting colour"),
        ("sede=3", "unknown setting sede; did you mean seed"),
        ("+trainer.max_epochs=3", "unknown setting trainer.max_epochs"),
        ("model.width=wide", "model.width: .*wide"),
        ("trainer=gpus", "trainer=gpus is unknown; did you mean gpu"),
        ("device=a1000", "a100"),
        ("seed=abc", "seed is .abc.: expected a whole number"),
        ("seed=-1", "seed is -1: expected a whole number"),
    ],
)
def test_what_nothing_reads_is_refused_in_one_line(override, message):
    with pytest.raises(CdmppError, match=message) as refused:
        settings(override)
    assert "\n" not in str(refused.value)


def test_imported_vectors_have_no_analytic_time():
    assert settings("features=ansor164").training.model.prior is False


def test_target_and_sources_enter_the_split():
    run = settings("experiment=cross_device", "target=xeon-icelake-avx2", "sources=[xeon-icelake]")
    assert run.device.name == run.target == run.split["target"] == "xeon-icelake-avx2"
    assert run.split["sources"] == ["xeon-icelake"] and "xeon-icelake-avx2" in str(run.run.out)
    assert settings("split=by_device", "target=a100").split["sources"] is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["experiment=cross_device"], "needs target="),
        (["experiment=cross_device", "target=xeon-icelak"], "xeon-icelake"),
        (["target=a100"], "goes with a split by device"),
        (["sources=[a100,b100]"], "b100"),
        (["loss.domain=cdm"], "none, cmd"),
    ],
)
def test_mistaken_targets_are_named(overrides, message):
    with pytest.raises(CdmppError, match=message):
        settings(*overrides)


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(CdmppError, match="not the folder of a training run"):
        settings(f"resume={tmp_path}")


@pytest.fixture
def train(run_script, monkeypatch):
    monkeypatch.setenv("CDMPP_DATA", "")

    def run(*overrides: str, **environment: str):
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            return run_script("scripts/train.py", *overrides)

    return run


def test_from_records_to_a_scored_model_folder(tmp_path, train):
    write_toy_dataset(tmp_path / "toy", 120)
    out = tmp_path / "run"
    quick = ["experiment=quick", "trainer.epochs=2", "baselines=[constant]", "accelerator=cpu", "progress=false"]
    done = train(f"data.path=[{tmp_path}]", f"out={out}", *quick)
    assert done.returncode == 0, done.stderr
    assert "constant" in done.stdout and str(out / "model") in done.stdout
    told = json.loads((out / "model" / "card.json").read_text())["warnings"]
    assert len(told) == 2 and all(f"WARNING {sentence}" in done.stdout for sentence in told)
    assert "programs of" in told[0] and "can promise" in told[1] and "intervals that promise 80 %" not in done.stdout
    assert {"model", "plots", "test.json", "history.csv", "settings.json"} <= {p.name for p in out.iterdir()}
    figures = json.loads((out / "test.json").read_text())
    assert set(figures["models"]) == {"constant", "cdmpp"}
    assert cdmpp.load_model(out / "model").trained_on

    again = train(f"resume={out}")
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "test.json").read_text())["models"] == figures["models"]


def write_two_devices(folder: Path) -> None:
    """The same tasks on two devices; the second is slower by a constant factor."""
    write_toy_dataset(folder / "one", 160)
    write_toy_dataset(folder / "two", 160, "xeon-icelake-avx2", factor=1.7, prefix="two-")


QUICK = ["experiment=quick", "trainer.epochs=2", "accelerator=cpu", "progress=false", "plots=false"]


def test_cross_device_in_one_line(tmp_path, train):
    write_two_devices(tmp_path)
    options = [*QUICK, "split=by_device", "loss.domain=cmd", "baselines=[constant,analytic]"]
    done = train(f"data.path=[{tmp_path}]", f"out={tmp_path}/run", "target=xeon-icelake-avx2", *options)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "run" / "test.json").read_text())
    assert set(figures["models"]) == {"constant", "analytic", "cdmpp"}
    assert figures["device"].startswith("xeon-icelake-avx2")
    card = json.loads((tmp_path / "run" / "model" / "card.json").read_text())
    assert card["split"]["sources"] == ["xeon-icelake"] and card["split"]["test_tasks_seen_on_sources"] == 0
    assert set(cdmpp.load_model(tmp_path / "run" / "model").trained_on) == {"xeon-icelake"}


def test_joint_training_on_several_devices(tmp_path, train):
    write_two_devices(tmp_path)
    sources = "sources=[xeon-icelake,xeon-icelake-avx2]"
    done = train(f"data.path=[{tmp_path}]", f"out={tmp_path}/run", sources, "baselines=[xgb_ours]", *QUICK)
    assert done.returncode == 0, done.stderr
    assert len(cdmpp.load_model(tmp_path / "run" / "model").trained_on) == 2


def test_zero_shot_for_a_device_without_records(tmp_path, monkeypatch, train):
    write_two_devices(tmp_path / "data")
    data, out = f"data.path=[{tmp_path}/data]", tmp_path / "outputs" / "graviton2" / "now"
    options = [data, "device=graviton2", f"out={out}", "baselines=[constant]", *QUICK]
    refused = train(*options, "allow_zero_shot=false")
    assert refused.returncode != 0 and "no labelled programs of device graviton2" in refused.stderr
    done = train(*options, CDMPP_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.strip()]
    assert said[0].startswith("no labelled programs of device graviton2") and "zero-shot" in "".join(said[-2:])
    assert "nothing is learned from machine code" in done.stdout
    card = json.loads((out / "model" / "card.json").read_text())
    assert card["label"] == "zero-shot" and card["zero_shot"]["device"] == "graviton2"
    assert set(card["zero_shot"]["left_out"]) == {"xeon-icelake", "xeon-icelake-avx2"}
    assert all(row["mape"] > 0 for row in card["zero_shot"]["left_out"].values())
    words = [*(word for word in options if not word.startswith("out=")), f"out={tmp_path}/again"]
    again = train(*words, CDMPP_CACHE=str(tmp_path / "cache"))
    assert again.returncode == 0 and again.stdout.count("trained without") == 2, again.stderr
    assert json.loads((tmp_path / "again" / "model" / "card.json").read_text())["zero_shot"] == card["zero_shot"]
    assert not list((tmp_path / "again").glob("without-*"))
    monkeypatch.chdir(tmp_path)
    entry = model_for("graviton2", models())
    assert entry.folder.resolve() == (out / "model").resolve() and "graviton2" not in entry.devices
    prediction = cdmpp.load_model(entry.folder).predict(toy_dataset(20)[0].asts, device="graviton2")
    assert not prediction.trained_on_device and (prediction.latency_s > 0).all()


def test_public_records_out_of_reach_stop_the_run_with_what_was_looked_for(tmp_path, train):
    """No proxy and no name server answer here: it must not train on CPU records instead."""
    write_toy_dataset(tmp_path / "data" / "one", 120)
    options = [f"data.path=[{tmp_path}/data]", f"out={tmp_path}/run", "baselines=[constant]", *QUICK]
    blocked = {"https_proxy": "http://127.0.0.1:9", "CDMPP_CACHE": str(tmp_path / "cache")}
    done = train("device=a100", *options, **blocked)
    assert done.returncode != 0 and "Traceback" not in done.stderr and "zero-shot:" not in done.stdout
    for told in (
        "no labelled programs of device a100",
        str(tmp_path / "data"),
        "$CDMPP_DATA (not set)",
        "lac-dcc/bennu",
        "cannot download",
        "cdmpp data import",
        "clone that repository",
        "allow_zero_shot=true",
    ):
        assert told in done.stderr, told  # fmt: skip
    assert not (tmp_path / "run" / "model").exists()
    done = train("device=a100", *options, "allow_zero_shot=true", **blocked)
    assert done.returncode == 0 and "orders of magnitude" in done.stdout, done.stderr


def test_zero_shot_has_three_settings():
    assert [settings(f"allow_zero_shot={value}").allow_zero_shot for value in ("auto", "true", "false")] == [
        "auto", "true", "false",
    ]  # fmt: skip
    with pytest.raises(CdmppError, match="auto, true, false"):
        settings("allow_zero_shot=perhaps")


def test_leave_one_out_is_true_or_false_and_runs_older_than_it_go_on(tmp_path):
    assert [settings(*words).leave_one_out for words in ([], ["leave_one_out=false"])] == [True, False]
    with pytest.raises(CdmppError, match="leave_one_out is .half.: expected true or false"):
        settings("leave_one_out=half")
    kept = {key: value for key, value in settings().values.items() if key != "leave_one_out"}
    (tmp_path / "settings.json").write_text(json.dumps(kept))
    assert settings(f"resume={tmp_path}").leave_one_out is True


def test_zero_shot_from_one_source_says_that_no_error_is_known(tmp_path, train):
    write_toy_dataset(tmp_path / "data" / "one", 120)
    done = train(f"data.path=[{tmp_path}/data]", "device=v100", f"out={tmp_path}/run", "baselines=[constant]", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "could not be estimated" in done.stdout and "orders of magnitude" in done.stdout
    assert json.loads((tmp_path / "run" / "model" / "card.json").read_text())["zero_shot"]["left_out"] == {}


def test_an_unknown_device_gets_the_nearest_names(train):
    done = train("device=a1000")
    assert done.returncode != 0 and "a100" in done.stderr and "Traceback" not in done.stderr

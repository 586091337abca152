"""Every verb works from the installed wheel, in a folder that holds nothing of the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import cdmpp
from cdmpp import devices
from cdmpp.cli.verbs import VERBS
from cdmpp.data.derive import has_tvm
from tests.toy_data import write_toy_dataset

TESTS = Path(__file__).parents[1]
# One process runs them all: each would spend some seconds on importing torch and Hydra.
RUN_ALL = """
import contextlib, io, json, sys
import cdmpp
from cdmpp.cli import main
print(cdmpp.__file__)
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(command)
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""
QUIET = ("progress=false", "accelerator=cpu")
COMMANDS = {
    "devices": "devices --json",
    "cache": "cache --json",
    "models": "model list --json",
    "data": "data summary --json",
    "train without data": "model train device=t4 allow_zero_shot=false",
    "finetune without data": "model finetune device=t4 start=run/model",
    "train": "model train experiment=quick trainer.epochs=1 baselines=[constant] plots=false out=run",
    "predict": "predict datasets/one --device xeon-icelake --model run/model --json",
    "finetune": "model finetune device=my-cpu start=run/model budget=3 tuning.steps=3 tuning.folds=0 out=tuned",
    "evaluate": "model evaluate split=[random] seeds=[0] models=[constant,analytic] out=cells accelerator=cpu",
    "measure": "data measure runner=rpc",
    "evaluate networks": "model evaluate-networks device=a100",
    "import": "data import path=database device=a100 network=resnet34",
    "probe": "data probe --help",
    "calibrate": "model calibrate --device a100",
    "network": "network --help",
    "data codes": "data codes --path datasets/none",
    "data merge": "data merge --help",
    "step": "step --help",
    "plan": "plan --help",
    "trace": "trace --help",
    "collective": "collective --help",
    "compare": "compare --help",
    "serve": "serve --help",
    "synchrony": "synchrony --help",
    "fit": "fit runs.csv --budget-s 2 --json",
    "tune": "tune --help",
    "predict a script": "predict matmul.py --device xeon-icelake --json",
}


class Done(NamedTuple):
    status: int | str | None
    out: str
    err: str


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    write_toy_dataset(folder / "datasets" / "one", 120)
    own = (TESTS.parent / "conf" / "device" / "xeon-icelake.yaml").read_text()
    (folder / "conf" / "device").mkdir(parents=True)
    (folder / "conf" / "device" / "my-cpu.yaml").write_text(own.replace("name: xeon-icelake", "name: my-cpu", 1))
    write_toy_dataset(folder / "datasets" / "two", 120, "my-cpu", factor=1.7, prefix="two-")
    shutil.copytree(TESTS / "fixtures" / "resnet34_a100", folder / "database")
    for name in ("matmul.py", "runs.csv"):
        shutil.copy(TESTS.parent / "examples" / name, folder)
    return folder


@pytest.fixture(scope="module")
def done(place, installed) -> dict[str, Done]:
    commands = [
        [*command.split(), *(QUIET if command.startswith(("model train", "model finetune")) else ())]
        for command in COMMANDS.values()
    ]
    environment = {**installed, "CDMPP_CACHE": str(place / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    first, *answers = ran.stdout.splitlines()
    assert Path(first).is_relative_to(installed["PYTHONPATH"])
    return {name: Done(*json.loads(answer)) for name, answer in zip(COMMANDS, answers, strict=True)}


def test_no_verb_is_forgotten():
    named = {verb for verb in VERBS for line in COMMANDS.values() if f"{line} ".startswith(f"{verb} ")}
    assert named == set(VERBS)


@pytest.mark.parametrize("name", ["devices", "models", "data", "train", "predict", "finetune", "evaluate", "fit"])
def test_a_verb_ends_well(done, name):
    assert done[name].status == 0, done[name].err


def test_what_is_listed_is_what_is_here(done):
    assert [entry["name"] for entry in json.loads(done["devices"].out)] == sorted([*devices.names(), "my-cpu"])
    assert "xeon-icelake" in [entry["name"] for entry in json.loads(done["models"].out)]
    assert [entry["programs"] for entry in json.loads(done["data"].out)] == [120, 120]


def test_a_trained_model_lies_where_it_was_asked_for(done, place):
    assert str(Path("run") / "model") in done["train"].out
    assert list(cdmpp.load_model(place / "run" / "model").trained_on) == ["xeon-icelake"]
    assert len(json.loads(done["predict"].out)["programs"]) == 120


def test_a_tuned_model_knows_a_device_that_is_described_in_the_working_folder(done, place):
    assert "my-cpu" in cdmpp.load_model(place / "tuned" / "model").trained_on


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_without_data_training_says_where_it_looked_and_leaves_nothing(done, place, verb):
    status, _, err = done[f"{verb} without data"]
    assert status == 2 and err.startswith("cdmpp: ") and "t4" in err and "datasets" in err
    assert not (place / "outputs" / "t4").exists()


def test_measuring_needs_a_tracker_where_it_is_remote(done):
    assert done["measure"].status == 2 and "tracker" in done["measure"].err


def test_only_described_cpus_are_calibrated(done, place):
    assert done["calibrate"].status == 2 and "a100 has none of it" in done["calibrate"].err
    assert not (place / "outputs" / "a100").exists()


@pytest.mark.tvm
@pytest.mark.skipif(not has_tvm(), reason="needs TVM")
def test_programs_and_databases_are_read(done, place):
    assert done["predict a script"].status == 0, done["predict a script"].err
    assert json.loads(done["predict a script"].out)["programs"][0]["latency_s"] > 0
    assert done["import"].status == 0, done["import"].err
    assert (place / "datasets" / "resnet34_a100" / "dataset.json").is_file()

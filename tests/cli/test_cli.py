"""The shell command: right numbers, one-line errors with exit code 2, and no foreign code run from a program file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_data import toy_ast

import cdmpp
from cdmpp import cli, devices
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.records import append_records, write_info
from cdmpp.data.schema import Record
from cdmpp.model.build import build_for, config_from_dict
from cdmpp.predict.catalogue import model_for, models
from cdmpp.predict.predictor import Predictor
from cdmpp.uncertainty.calibration import calibrate

SCRIPT = '''
"""Two programs, and a line that must never run."""
import os
from tvm.script import ir as I
from tvm.script import tirx as T

os.system("touch {flag}")


@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[v_i, v_j] = T.float32(0.0)
                C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]


@T.prim_func(s_tir=True)
def scale(A: T.Buffer((64,), "float32"), filter: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("B"):
            v = T.axis.spatial(64, i)
            filter[v] = A[v] * T.float32(2)
'''


@pytest.fixture(scope="module")
def asts() -> AstTable:
    rng = np.random.default_rng(0)
    return AstTable.from_asts([toy_ast(rng) for _ in range(30)])


@pytest.fixture(scope="module")
def model(asts, tmp_path_factory) -> Path:
    """A small untrained model: its answers are arbitrary, but the same through every door."""
    device = devices.get("xeon-icelake")
    torch.manual_seed(0)  # whatever tests ran before
    tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * 30, np.linspace(1e-6, 1e-3, 30))
    small = config_from_dict({"name": "cdmpp", "width": 16, "layers": 1, "heads": 2, "feedforward": 16, "hidden": 16})
    folder = tmp_path_factory.mktemp("work") / "models" / "small"
    Predictor([build_for(small, tensors, np.arange(30))], {device.name: device}).save(folder)
    return folder


@pytest.fixture(scope="module")
def calibrated_model(model, asts, tmp_path_factory) -> Path:
    predictor, device = cdmpp.load(model), devices.get("xeon-icelake")
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


def refused(capsys, *arguments: str) -> str:
    """The one line on stderr of a command that must end with exit code 2 and print nothing else."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("cdmpp: ") and err.count("\n") == 1
    return err


def test_devices_json_has_every_number_and_source(workplace, capsys):
    assert cli.main(["devices", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert sorted(listed) == list(devices.names())
    assert listed["v100"]["spec"]["bandwidth_gbps"]["value"] == 900
    assert "V100" in listed["v100"]["spec"]["bandwidth_gbps"]["source"]
    assert listed["hl-100"]["spec"]["clock_mhz"]["value"] is None


def test_models_lists_them_with_the_figures_of_their_cards(workplace, model, capsys):
    shutil.copytree(model, workplace / "models" / "tested")
    test = {"split": "held_out", "metrics": {"mape": 21.25}, "intervals": {"0.8": {"coverage": 79.4}}}
    (workplace / "models" / "tested" / "card.json").write_text(
        json.dumps({"test": test, "created": "2026-02-03T04:05"})
    )
    shutil.copytree(model, workplace / "models" / "bare")
    (workplace / "models" / "bare" / "card.json").unlink()
    assert cli.main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    tested, bare = listed["models/tested"], listed["models/bare"]
    assert (tested["figures_of"], tested["mape"], tested["interval_coverage"]) == (
        "test, held_out",
        21.25,
        {"0.8": 79.4},
    )
    assert (bare["mape"], bare["devices"]) == (None, ["xeon-icelake"]) and bare["megabytes"] > 0
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "21.2" in shown and "79.4" in shown and "2026-02-03" in shown


GARBLED = {
    "text": "{",
    "list": "[1]",
    "metrics": '{"test": {"split": "x", "metrics": 3}}',
    "number": '{"validation": {"mape": "ten"}}',
    "intervals": '{"intervals": {"groups": {"all": {"levels": {"0.8": {"promised": []}}}}}}',
    "device": '{"zero_shot": 4}',
}


def test_a_garbled_card_damages_its_own_model_only(workplace, model, capsys):
    for name, text in GARBLED.items():
        shutil.copytree(model, workplace / "models" / name)
        (workplace / "models" / name / "card.json").write_text(text)
    shutil.copytree(model, workplace / "models" / "whole")
    assert cli.main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["models/whole"]["usable"] and not listed["models/whole"]["problem"]
    for name in GARBLED:
        entry = listed[f"models/{name}"]
        assert entry["state"] == "damaged" and f"models/{name}/card.json" in entry["problem"], name
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(f"models/{name} is damaged: " in shown for name in GARBLED) and "models/whole is" not in shown


def test_few_tasks_promise_less_than_the_nominal_level(workplace, model, asts, capsys):
    predictor, device = cdmpp.load(model), devices.get("xeon-icelake")
    tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * 30)
    seen = predictor.examine(tensors, np.arange(30))
    predictor.calibration = calibrate(seen, seen, seen.log_prediction + 0.1, ["task"] * 30, ["cpu/xeon-icelake"] * 30)
    predictor.card["intervals"] = predictor.calibration.describe()
    predictor.save(workplace / "models" / "thin")
    assert predictor.predict(asts).promised == {0.8: 0.4, 0.9: 0.45}
    write_asts(workplace / "asts.parquet", [f"p{i}" for i in range(30)], asts)
    asked = ["predict", "asts.parquet", "--device", "xeon-icelake", "--model", "models/thin"]
    assert cli.main(asked) == 0
    shown = capsys.readouterr().out
    assert "40 % interval" in shown and "80 % interval" not in shown
    assert cli.main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interval_promised"] == {"0.8": 0.4, "0.9": 0.45}
    assert cli.main(["models", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["models/thin"]["interval_promised"] == {"0.8": 0.4, "0.9": 0.45}


def test_an_answer_that_is_no_number_is_refused(workplace, model, asts, capsys):
    features = asts.leaf_features.copy()
    features[0] = np.nan
    write_asts(
        workplace / "nan.parquet", [f"p{i}" for i in range(30)], dataclasses.replace(asts, leaf_features=features)
    )
    said = refused(capsys, "predict", "nan.parquet", "--device", "xeon-icelake", "--model", str(model), "--json")
    assert "1 of 30" in said or "NaN" in said


def test_devices_shows_the_data_and_models_that_are_here(workplace, model, capsys):
    write_records(workplace / "datasets" / "mine", ["t4", "t4", "v100"])
    (workplace / "models").symlink_to(model.parent, target_is_directory=True)
    assert cli.main(["devices", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    ours = {
        name: [data["programs"] for data in entry["data"] if Path(data["folder"]).parent.parent == workplace]
        for name, entry in listed.items()
    }
    assert ours["t4"] == [2] and ours["v100"] == [1] and ours["a100"] == []
    assert "models/small" in listed["xeon-icelake"]["models"] and "models/small" not in listed["t4"]["models"]
    assert cli.main(["devices"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "│ t4 " in line)
    assert "NVIDIA T4" in line and "2 programs" in line


def write_records(folder: Path, where: list[str]) -> None:
    write_info(folder, name=folder.name)
    append_records(
        folder,
        [
            Record(f"r{i}", "task", device, json.dumps(devices.get(device).target), "[[], []]", (1e-3,), 1e-3)
            for i, device in enumerate(where)
        ],
    )


def test_data_summary_counts(workplace, capsys):
    write_records(workplace / "datasets" / "mine", ["t4", "t4", "v100"])
    assert cli.main(["data", "--json"]) == 0
    mine = [entry for entry in json.loads(capsys.readouterr().out) if entry["folder"].startswith(str(workplace))]
    assert [(e["device"], e["programs"], e["tasks"], e["form"]) for e in mine] == [
        ("t4", 2, 1, "records"),
        ("v100", 1, 1, "records"),
    ]


def test_data_summary_tells_a_damaged_file(workplace, capsys):
    write_records(workplace / "datasets" / "mine", ["t4"])
    part = workplace / "datasets" / "mine" / "records" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert cli.main(["data", "--json"]) == 0
    mine = [entry for entry in json.loads(capsys.readouterr().out) if entry["folder"].startswith(str(workplace))]
    assert [(e["device"], e["form"]) for e in mine] == [("?", "unreadable")] and mine[0]["note"]


def test_predict_stored_asts_equals_the_library(workplace, asts, model, capsys):
    write_asts(workplace / "asts.parquet", [f"program{i}" for i in range(30)], asts)
    command = ["predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(model)]
    assert cli.main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = cdmpp.load(model).predict(asts).latency_s
    assert [row["program"] for row in answer["programs"]] == [f"program{i}" for i in range(30)]
    np.testing.assert_allclose([row["latency_s"] for row in answer["programs"]], expected, rtol=1e-6)

    assert cli.main([*command, "--rows", "3"]) == 0
    table = capsys.readouterr().out
    fastest = np.argsort(expected)
    assert [i for i in range(30) if f"program{i} " in table] == sorted(fastest[:3])
    assert cli.format_seconds(expected[fastest[0]]) in table and "27 slower ones" in table


def test_predict_shows_intervals_and_programs_unlike_the_training_ones(workplace, asts, calibrated_model, capsys):
    strange = dataclasses.replace(asts[0], leaf_features=asts[0].leaf_features + 50)
    write_asts(workplace / "asts.parquet", ["usual", "strange"], AstTable.from_asts([asts[0], strange]))
    command = ["predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(calibrated_model)]
    assert cli.main([*command, "--json"]) == 0
    usual, odd = json.loads(capsys.readouterr().out)["programs"]
    assert usual["intervals_s"]["0.8"][0] <= usual["latency_s"] <= usual["intervals_s"]["0.8"][1]
    assert usual["intervals_s"]["0.9"][1] >= usual["intervals_s"]["0.8"][1]
    assert odd["unlike_training"] and not usual["unlike_training"] and odd["novelty"] == 1
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("80 % interval" in line for line in lines)
    assert ["unlike training" in line for line in lines if "strange" in line or "usual" in line].count(True) == 1
    low, high = map(cli.format_seconds, usual["intervals_s"]["0.8"])
    assert any(f"{low} - {high}" in line for line in lines)


def test_stored_asts_are_predicted_and_scripts_refused_without_tvm(workplace, asts, model):
    write_asts(workplace / "asts.parquet", [str(i) for i in range(30)], asts)
    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    code = "import sys; sys.modules['tvm'] = None; from cdmpp.cli.command import main; sys.exit(main(sys.argv[1:]))"

    def run(programs: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "predict", programs, "--device", "xeon-icelake", "--model", str(model)]
        return subprocess.run([*command, "--json"], capture_output=True, text=True)

    done = run("asts.parquet")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["programs"]) == 30
    done = run("two.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "needs TVM" in done.stderr


def test_predict_warns_when_the_model_never_saw_the_device(workplace, asts, model, capsys):
    write_asts(workplace / "asts.parquet", [str(i) for i in range(30)], asts)
    assert cli.main(["predict", "asts.parquet", "--device", "epyc-7452", "--model", str(model), "--json"]) == 0
    assert "never saw epyc-7452" in capsys.readouterr().err


@pytest.mark.tvm
def test_predict_reads_a_script_without_running_it(workplace, model, capsys):
    pytest.importorskip("tvm")
    from tvm.target import Target

    from cdmpp.programs.script import read_script

    path = workplace / "two.py"
    path.write_text(SCRIPT.format(flag=workplace / "ran"))
    assert cli.main(["predict", str(path), "--device", "xeon-icelake", "--model", str(model), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    programs = read_script(path, Target(devices.get("xeon-icelake").target))
    expected = cdmpp.load(model).predict(programs).latency_s
    assert [row["program"] for row in answer["programs"]] == ["main", "scale"]
    np.testing.assert_allclose([row["latency_s"] for row in answer["programs"]], expected, rtol=1e-5)
    assert not (workplace / "ran").exists()


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("T.float32(2)", "__import__('os').system('touch ran')", "__import__('os').system is not TVMScript"),
        ("T.float32(2)", "().__class__", "__class__ is not TVMScript"),
        ("T.float32(2)", "eval('1')", "eval is not TVMScript"),
        ("T.float32(2)", "open('ran', 'w')", "open is not TVMScript"),
        ('T.Buffer((64,), "float32"), filter', "\"__import__('os').system('touch ran')\", filter", "a type such as"),
        ("T.float32(2)", "UNDEFINED", "UNDEFINED"),
        ("def scale(", "def scale(:", "not Python text"),
    ],
)
def test_predict_refuses_what_is_no_tvmscript(workplace, model, capsys, old, new, message):
    pytest.importorskip("tvm")
    text = SCRIPT.format(flag="ran")
    assert old in text
    (workplace / "bad.py").write_text(text.replace(old, new))
    error = refused(capsys, "predict", "bad.py", "--device", "xeon-icelake", "--model", str(model))
    assert "bad.py" in error and message in error
    assert not (workplace / "ran").exists()


@pytest.mark.tvm
def test_predict_refuses_a_script_without_programs(workplace, model, capsys):
    pytest.importorskip("tvm")
    (workplace / "empty.py").write_text("x = 1\n")
    assert "no @T.prim_func" in refused(
        capsys, "predict", "empty.py", "--device", "xeon-icelake", "--model", str(model)
    )


def test_model_is_chosen_by_device_and_extractor_version(workplace, model, capsys):
    other = workplace / "models" / "older"
    other.mkdir(parents=True)
    (other / "model.safetensors").write_bytes(b"")
    (other / "config.json").write_text(json.dumps({"devices": {"hl-100": {}}, "extractor_version": "0"}))
    (workplace / "models" / "foreign").mkdir()
    (workplace / "models" / "foreign" / "config.json").write_text("{}")
    assert [entry.usable for entry in models() if entry.folder.name == "older"] == [False]
    assert "no model trained on hl-100 is here" in refused(capsys, "predict", "x.py", "--device", "hl-100")
    content = json.loads((model / "config.json").read_text())
    content["devices"]["hl-100"] = content["devices"]["xeon-icelake"]
    (other / "config.json").write_text(json.dumps(content))
    assert model_for("hl-100", models()).name == "models/older"
    trained = workplace / "outputs" / "hl-100" / "2026-01-01" / "model"
    trained.parent.mkdir(parents=True)
    trained.symlink_to(other, target_is_directory=True)
    assert "outputs/hl-100/2026-01-01/model" in [entry.name for entry in models()]


@pytest.mark.tvm
def test_predict_reads_a_tuning_database(workplace, model, capsys):
    """Two records of one matmul, written by TVM itself."""
    pytest.importorskip("tvm")
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from cdmpp.programs.script import read_script

    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    matmul = read_script(workplace / "two.py", None)[0].module
    target = Target(devices.get("xeon-icelake").target)
    database = ms.database.JSONDatabase(work_dir=str(workplace))
    workload = database.commit_workload(matmul)
    for tile in (4, 16):
        schedule = Schedule(matmul)
        i, _, _ = schedule.get_loops(schedule.get_sblock("C"))
        schedule.split(i, [None, tile])
        arguments = ms.arg_info.ArgInfo.from_prim_func(matmul["main"])
        database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, arguments))
    assert cli.main(["predict", ".", "--device", "xeon-icelake", "--model", str(model), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["programs"]
    assert len(rows) == 2 and len({row["program"] for row in rows}) == 2
    assert all(row["latency_s"] > 0 for row in rows)


def test_predict_errors_are_one_line(workplace, model, capsys):
    assert "nearest: a100" in refused(capsys, "predict", "x.py", "--device", "a1000")
    assert "does not exist" in refused(capsys, "predict", "x.py", "--device", "t4", "--model", str(model))
    assert "neither a model folder" in refused(capsys, "predict", "x.py", "--device", "t4", "--model", "nowhere")
    assert "no model trained on hl-100 is here" in refused(capsys, "predict", "x.py", "--device", "hl-100")
    (workplace / "x.onnx").write_text("")
    assert "x.onnx is neither" in refused(capsys, "predict", "x.onnx", "--device", "t4", "--model", str(model))
    assert "no such folder: nowhere" in refused(capsys, "data", "--path", "nowhere")


def test_damaged_asts_are_one_line(workplace, model, capsys):
    (workplace / "asts.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert "asts.parquet" in refused(
        capsys, "predict", "asts.parquet", "--device", "xeon-icelake", "--model", str(model)
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.500 s"), (0.00123, "1.230 ms"), (4.5678e-5, "45.68 us"), (9.9e-9, "9.900 ns"), (123.4e-6, "123.4 us")],
)
def test_latency_has_a_fitting_unit(seconds, text):
    assert cli.format_seconds(seconds) == text


def test_usage_errors_end_with_code_2(capsys):
    for arguments in ([], ["predict"], ["nonsense"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
    assert "usage: cdmpp" in capsys.readouterr().err


def test_script_verbs_need_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site-packages" / "cdmpp" / "cli.py"))
    assert "belongs to a source checkout" in refused(capsys, "train", "device=a100")


def test_script_verbs_pass_their_arguments_on(monkeypatch, tmp_path, capsys):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "cdmpp" / "cli.py"))
    assert cli.main(["train", "device=a100", "--multirun", "--help"]) == 0
    assert capsys.readouterr().out.strip() == "['device=a100', '--multirun', '--help']"


def test_listing_devices_starts_neither_torch_nor_tvm():
    code = "import sys; from cdmpp.cli import command as c; c.devices.all_devices(); print({'torch', 'tvm', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.tvm
def test_predicting_a_script_imports_neither_tvm_nor_what_training_needs(workplace):
    """Each of these costs a second; TVM is imported by a child process in the meantime."""
    pytest.importorskip("tvm")
    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    heavy = {"tvm", "sklearn", "scipy", "pandas", "hydra", "lightning", "matplotlib", "torch._dynamo", "sympy"}
    code = (
        "import sys; from cdmpp.cli.command import main; main(sys.argv[1:]); "
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "predict", "two.py", "--device", "xeon-icelake", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert [row["flags"] for row in json.loads(done.stdout)["programs"]] == [["not scheduled"]] * 2

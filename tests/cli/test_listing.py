"""`cdmpp devices`, `model list` and `data summary`: what is here, with its numbers, and what is damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import cdmpp
from cdmpp import cli, devices
from cdmpp.ast.table import write_asts
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.records import append_records, write_info
from cdmpp.data.schema import Record
from cdmpp.errors import ModelFormatError
from cdmpp.predict.catalogue import model_for, models
from cdmpp.uncertainty.calibration import calibrate


def write_records(folder: Path, where: list[str]) -> None:
    write_info(folder, name=folder.name)
    append_records(
        folder,
        [
            Record(f"r{i}", "task", device, json.dumps(devices.get(device).target), "[[], []]", (1e-3,), 1e-3)
            for i, device in enumerate(where)
        ],
    )


def test_devices_json_has_every_number_and_source(workplace, capsys):
    assert cli.main(["devices", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert sorted(listed) == list(devices.names())
    assert listed["v100"]["spec"]["bandwidth_gbps"]["value"] == 900
    assert "V100" in listed["v100"]["spec"]["bandwidth_gbps"]["source"]
    assert listed["hl-100"]["spec"]["clock_mhz"]["value"] is None


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


def test_models_lists_them_with_the_figures_of_their_cards(workplace, model, capsys):
    shutil.copytree(model, workplace / "models" / "tested")
    test = {"split": "held_out", "metrics": {"mape": 21.25}, "intervals": {"0.8": {"coverage": 79.4}}}
    (workplace / "models" / "tested" / "card.json").write_text(
        json.dumps({"test": test, "created": "2026-02-03T04:05"})
    )
    shutil.copytree(model, workplace / "models" / "bare")
    (workplace / "models" / "bare" / "card.json").unlink()
    assert cli.main(["model", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    tested, bare = listed["models/tested"], listed["models/bare"]
    assert (tested["figures_of"], tested["mape"], tested["interval_coverage"]) == (
        "test, held_out",
        21.25,
        {"0.8": 79.4},
    )
    assert (bare["mape"], bare["devices"]) == (None, ["xeon-icelake"]) and bare["megabytes"] > 0
    assert cli.main(["model", "list"]) == 0
    shown = capsys.readouterr().out
    assert "21.2" in shown and "79.4" in shown and "2026-02-03" in shown


GARBLED = {
    "text": "{",
    "list": "[1]",
    "metrics": '{"test": {"split": "x", "metrics": 3}}',
    "number": '{"validation": {"mape": "ten"}}',
    "intervals": '{"intervals": {"groups": {"all": {"levels": {"0.8": {"promised": []}}}}}}',
    "coverage": '{"test": {"intervals": {"0.8": 79.4}}}',
    "device": '{"zero_shot": 4}',
}


def test_a_garbled_card_damages_its_own_model_only(workplace, model, capsys):
    for name, text in GARBLED.items():
        shutil.copytree(model, workplace / "models" / name)
        (workplace / "models" / name / "card.json").write_text(text)
    shutil.copytree(model, workplace / "models" / "whole")
    assert cli.main(["model", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["models/whole"]["usable"] and not listed["models/whole"]["problem"]
    for name in GARBLED:
        entry = listed[f"models/{name}"]
        assert entry["state"] == "damaged" and f"models/{name}/card.json" in entry["problem"], name
    assert cli.main(["model", "list"]) == 0
    shown = capsys.readouterr().err
    assert all(f"models/{name} is damaged: " in shown for name in GARBLED) and "models/whole is" not in shown


def test_few_tasks_promise_less_than_the_nominal_level(workplace, model, asts, capsys):
    predictor, device = cdmpp.load_model(model), devices.get("xeon-icelake")
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
    assert cli.main(["model", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["models/thin"]["interval_promised"] == {"0.8": 0.4, "0.9": 0.45}


def test_model_is_chosen_by_device_and_extractor_version(workplace, model, refused):
    other = workplace / "models" / "older"
    other.mkdir(parents=True)
    (other / "model.safetensors").write_bytes(b"")
    (other / "config.json").write_text(json.dumps({"devices": {"hl-100": {}}, "extractor_version": "0"}))
    (workplace / "models" / "foreign").mkdir()
    (workplace / "models" / "foreign" / "config.json").write_text("{}")
    assert [entry.usable for entry in models() if entry.folder.name == "older"] == [False]
    assert "no model trained on hl-100 is here" in refused("predict", "x.py", "--device", "hl-100")
    content = json.loads((model / "config.json").read_text())
    content["devices"]["hl-100"] = content["devices"]["xeon-icelake"]
    del content["config_sha256"]
    (other / "config.json").write_text(json.dumps(content))
    assert model_for("hl-100", models()).name == "models/older"
    trained = workplace / "outputs" / "hl-100" / "2026-01-01" / "model"
    trained.parent.mkdir(parents=True)
    trained.symlink_to(other, target_is_directory=True)
    assert "outputs/hl-100/2026-01-01/model" in [entry.name for entry in models()]


def test_an_unknown_x86_cpu_is_answered_by_the_model_that_tells_what_to_expect(workplace):
    entries = models()
    assert model_for("ryzen-7-3700x", entries).name == "cpus"
    assert model_for("epyc-genoa", entries).name == "epyc-genoa"  # cpus knows it, too
    for other in ("graviton2", "mi210"):
        with pytest.raises(ModelFormatError, match=f"no model trained on {other} is here"):
            model_for(other, entries)


def test_data_summary_counts(workplace, capsys):
    write_records(workplace / "datasets" / "mine", ["t4", "t4", "v100"])
    assert cli.main(["data", "summary", "--json"]) == 0
    mine = [entry for entry in json.loads(capsys.readouterr().out) if entry["folder"].startswith(str(workplace))]
    assert [(e["device"], e["programs"], e["tasks"], e["form"]) for e in mine] == [
        ("t4", 2, 1, "records"),
        ("v100", 1, 1, "records"),
    ]


def test_data_summary_tells_a_damaged_file(workplace, capsys):
    write_records(workplace / "datasets" / "mine", ["t4"])
    part = workplace / "datasets" / "mine" / "records" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert cli.main(["data", "summary", "--json"]) == 0
    mine = [entry for entry in json.loads(capsys.readouterr().out) if entry["folder"].startswith(str(workplace))]
    assert [(e["device"], e["form"]) for e in mine] == [("?", "unreadable")] and mine[0]["note"]


def test_where_no_data_is_the_way_to_some_is_told(workplace, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.data.summary.search_paths", lambda extra=(): [])
    assert cli.main(["data", "summary"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "no data is here; looked in datasets" in err and "cdmpp data measure" in err

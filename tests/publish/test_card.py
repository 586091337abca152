"""The data card, its numbers and its pictures, against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.publish import card
from cdmpp import cli
from cdmpp.data.plots import save_data_plots
from cdmpp.data.records import append_records, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.statistics import statistics
from cdmpp.errors import DataError
from cdmpp.programs.task import Task


def write(folder: Path, device: str = "xeon-icelake", factor: float = 1.0, tasks: int = 3) -> None:
    """Three tasks: six schedules of 1, 2, ... 6 ms, one of 10 us, one of 20 us."""
    kinds = ("conv2d", "elementwise", "elementwise")
    networks = ({"resnet18": 2, "resnet18@b4": 1}, {"resnet18": 1}, {"gpt2": 1})
    described = [Task(f"t{i}", f"op{i}", kinds[i], "text", 1.0, 1.0, networks[i]) for i in range(tasks)]
    latencies = [("t0", 1e-3 * n) for n in range(1, 7)] + [("t1", 1e-5), ("t2", 2e-5)]
    records = [
        Record(f"{device}{i}", task, device, "{}", f"s{i}", (factor * value,), factor * value, spread=0.01 * i)
        for i, (task, value) in enumerate(latencies)
    ]
    write_info(folder, name=folder.name)
    write_tasks(folder, described)
    append_records(folder, records)


def test_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    write(tmp_path)
    repeats = [{"record_id": f"r{i}", "device": "xeon-icelake", "first_s": 1.0, "again_s": a, "hours_apart": 1.5}
               for i, a in enumerate((1.0, 1.02, 0.96))]  # fmt: skip
    (tmp_path / "repeats.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in repeats))
    (tmp_path / "failures.jsonl").write_text(
        '{"id": "x", "task_id": "", "device": "xeon-icelake", "cause": "crash"}\n'
        '{"id": "network:vgg", "task_id": "", "device": "xeon-icelake", "cause": "import error", '
        '"message": "no  amax"}\n'
        '{"id": "network:gpt2", "task_id": "", "device": "xeon-icelake", "cause": "import error"}\n{"id": "cut'
    )
    (tmp_path / "plan.json").write_text('{"networks": ["gpt2", "resnet18"], "order": []}')
    (entry,) = statistics(tmp_path)
    assert (entry.programs, entry.tasks, entry.networks) == (8, 3, 2)
    assert entry.programs_by_class == {"conv2d": 6, "elementwise": 2}
    assert entry.tasks_by_class == {"elementwise": 2, "conv2d": 1}
    assert entry.programs_by_network["resnet18"] == {"conv2d": 6, "elementwise": 1}
    assert entry.programs_by_network["resnet18@b4"] == {"conv2d": 6}
    assert entry.schedule_range.tolist() == pytest.approx([6.0])
    assert entry.best_over_typical.tolist() == pytest.approx([3.5])
    assert entry.spread.mean() == pytest.approx(0.035) and entry.failures == {"crash": 1}
    assert card.not_imported(tmp_path, entry.device) == {"vgg": "no amax"} and "`vgg`: no amax" in card.card(tmp_path)
    assert entry.noise is not None and entry.noise.programs == 3
    assert entry.noise.mean == pytest.approx(0.02) and entry.noise.median == pytest.approx(0.02)
    assert entry.noise.drift == pytest.approx(0.0)


def test_the_card_compares_devices_and_shows_pictures(tmp_path: Path) -> None:
    write(tmp_path / "first")
    write(tmp_path / "second", "t4", factor=0.1)
    card.main(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "All 2 devices share 3 tasks; there are 3 in all." in text
    assert "| network | xeon-icelake | t4 |" in text and "| resnet18 | 7 | 7 |" in text
    assert "| programs | 8 |" in text and "| conv2d | 6 | 1 |" in text
    for name in ("op_classes", "networks", "latency", "spread", "schedules"):
        assert f"![{name}](images/{name}.png)" in text
        assert (tmp_path / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_need_no_task_with_many_schedules(tmp_path: Path) -> None:
    write(tmp_path / "set")
    (entry,) = statistics(tmp_path / "set")
    few = type(entry)(**{**vars(entry), "schedule_range": np.zeros(0), "best_over_typical": np.zeros(0)})
    assert len(save_data_plots(tmp_path / "plots", [few])) == 5


def test_an_empty_or_inconsistent_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, tasks=2)
    with pytest.raises(DataError, match="1 tasks of its records are not in tasks.parquet"):
        statistics(tmp_path)


def test_summary_prints_the_same_numbers(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("cdmpp.data.summary.known_paths", list)  # not those that ship
    write(tmp_path / "first")
    assert cli.main(["data", "summary", "--path", str(tmp_path), "--json", "--plots", str(tmp_path / "p")]) == 0
    entries = json.loads(capsys.readouterr().out)
    (mine,) = [entry for entry in entries if entry["folder"] == str(tmp_path / "first")]
    assert mine["statistics"]["programs_by_network"]["gpt2"] == {"elementwise": 1}
    assert len(list((tmp_path / "p").glob("*.png"))) == 5
    assert cli.main(["data", "summary", "--path", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Programs by operator" in told and "first (" in told

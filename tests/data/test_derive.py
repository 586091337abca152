"""Worker processes: a program that crashes, hangs or lacks a tool costs itself, and sticks only where it must."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from cdmpp.data import derive as module
from cdmpp.data import derive_process
from cdmpp.data.derive import Source, Wanted, data_set_folder, derive, failures, record_keys, sources_of
from cdmpp.errors import DataError
from cdmpp.paths import cache_root


@pytest.fixture(autouse=True)
def fake_child(monkeypatch) -> None:
    monkeypatch.setattr(derive_process, "_COMMAND", [sys.executable, str(Path(__file__).parent / "fake_child.py")])
    monkeypatch.setattr(derive_process, "_spare", None)
    monkeypatch.setattr(module, "has_tvm", lambda: True)
    yield
    if derive_process._spare is not None:
        derive_process._spare[1].close()


def sources(*schedules: str) -> list[Source]:
    return [Source(f"k{i}", "text", schedule, "{}") for i, schedule in enumerate(schedules)]


def stored(folder: Path) -> list[str]:
    return sorted(key for path in folder.glob("*.done") for key in json.loads(path.read_text()))


def test_crashes_hangs_and_missing_tools_cost_their_own_program_only(tmp_path):
    wanted = Wanted("asts", tmp_path, sources("", "crash", "", "hang", "bad", "no tool", ""))
    for_now = derive([wanted], workers=1, progress=False, limit_s=1)
    assert stored(tmp_path) == ["k0", "k2", "k6"]
    assert failures(tmp_path) == {"k1": "TVM crashed while lowering this program", "k4": "no"}
    assert for_now == {"asts": {"k3": "lowering took more than 1 s", "k5": "no tool"}}  # tried again next time


def test_two_kinds_share_the_workers(tmp_path):
    wanted = [Wanted(kind, tmp_path / kind, sources(*[""] * 20)) for kind in ("asts", "codes")]
    derive(wanted, workers=2, progress=False)
    assert [len(stored(tmp_path / kind)) for kind in ("asts", "codes")] == [20, 20]


def test_a_full_disk_ends_the_run(tmp_path):
    with pytest.raises(DataError, match="No space left"):
        derive([Wanted("asts", tmp_path, sources("", "disk"))], progress=False)


def test_a_child_that_cannot_start_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(derive_process, "_COMMAND", [sys.executable, "-c", "raise SystemExit('broken wheel')"])
    with pytest.raises(DataError, match="did not start: broken wheel"):
        derive([Wanted("asts", tmp_path, sources(""))], progress=False)


def test_a_mended_workload_is_another_program(task, make_record):
    mended = dataclasses.replace(task, workload="mended")
    (before,), (after,) = (sources_of([make_record(1)], {"t0": t}) for t in (task, mended))
    assert before.key != after.key and before.key.startswith(f"{1:016x}-")
    assert [before.key] == record_keys([f"{1:016x}"], ["t0"], {"t0": task})


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a/b"])
def test_cache_folders_stay_in_the_cache(tmp_path, name):
    folder = data_set_folder("asts", "5", tmp_path / name)
    assert folder.resolve().parent == (cache_root() / "asts" / "v5").resolve()
    assert folder != data_set_folder("asts", "5", tmp_path / name / "other")


def test_a_damaged_list_of_failures_is_told_and_passed_over(tmp_path, caplog):
    (tmp_path / "chunk-a.failed.json").write_text("{")
    (tmp_path / "chunk-b.failed.json").write_text(json.dumps({"k": "no"}))
    assert failures(tmp_path) == {"k": "no"} and "chunk-a" in caplog.text

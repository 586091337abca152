"""The loop with a make-believe machine: what is recorded, what a kill costs, what a rerun does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdmpp.data.records import read_info, read_records
from cdmpp.errors import CdmppError
from cdmpp.measure import collection, window
from cdmpp.measure.collector import Collector
from tests.measure.machine import ALL, Machine, settings


def test_every_program_is_visited_twice_and_recorded_once(machine: Machine, tmp_path: Path) -> None:
    found = Collector(settings(), tmp_path).run()
    records = read_records(tmp_path)
    assert found["programs"] == len(records) == len({r.record_id for r in records}) == ALL
    assert found["tasks"] == 10 and found["failures"] == {} and found["flagged_share"] == 0
    assert len(machine.visits) == 2 * ALL
    assert {r.extra["samples_per_visit"] for r in records} == {"10,10"}
    assert read_info(tmp_path)["programs"] == ALL
    assert json.loads((tmp_path / ".progress.json").read_text())["phase"] == "done"


def test_visits_to_one_program_lie_in_different_windows(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(), tmp_path).run()
    first = [machine.visits.index(s) for s in dict.fromkeys(machine.visits)]
    second = [len(machine.visits) - 1 - machine.visits[::-1].index(s) for s in dict.fromkeys(machine.visits)]
    assert min(b - a for a, b in zip(first, second, strict=True)) >= 5


def test_a_rerun_measures_nothing_again(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(), tmp_path).run()
    before = len(machine.visits)
    assert Collector(settings(), tmp_path).run()["programs"] == ALL
    assert len(machine.visits) == before


def test_a_kill_in_the_middle_costs_a_batch_and_doubles_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.kill_after = 25
    with pytest.raises(KeyboardInterrupt):
        Collector(settings(), tmp_path).run()
    kept = len(read_records(tmp_path))
    assert 0 < kept < ALL
    machine.kill_after = 10**9
    Collector(settings(), tmp_path).run()
    ids = [r.record_id for r in read_records(tmp_path)]
    assert len(ids) == len(set(ids)) == ALL


def test_a_second_collection_into_the_folder_is_refused(machine: Machine, tmp_path: Path) -> None:
    """Another thread is another writer, as another process would be; what it knew before it waited is stale."""
    second, refused = Collector(settings(), tmp_path), []
    answer = machine.answer

    def meanwhile(message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "time" and not refused:
            with ThreadPoolExecutor(1) as pool:
                refused.append(pool.submit(second.run).exception())
        return answer(message)

    machine.answer = meanwhile  # type: ignore[method-assign]
    Collector(settings(), tmp_path).run()
    assert isinstance(refused[0], CdmppError) and "being written by process" in str(refused[0])
    visited = len(machine.visits)
    assert second.run()["programs"] == ALL and len(machine.visits) == visited == 2 * ALL


def test_budget_ends_the_run_and_a_larger_one_continues(machine: Machine, tmp_path: Path) -> None:
    assert Collector(settings(budget=8), tmp_path).run()["programs"] == 8
    assert Collector(settings(budget=13), tmp_path).run()["programs"] == 13
    assert Collector(settings(), tmp_path).run()["programs"] == ALL


def test_failures_are_counted_by_cause_and_not_tried_again(machine: Machine, tmp_path: Path) -> None:
    slow, crash = json.dumps([["a" + "0" * 15, 0], []]), json.dumps([["b" + "0" * 15, 1], []])
    machine.broken = {slow: {"cause": "too slow", "run_s": 3.0}, crash: {"cause": "crash"}}
    found = Collector(settings(), tmp_path).run()
    assert found["programs"] == ALL - 2
    assert found["failures"] == {"too slow": 1, "build crash": 1}
    tried = machine.visits.count(slow)
    Collector(settings(), tmp_path).run()
    assert machine.visits.count(slow) == tried == 1


def test_disagreeing_visits_get_a_third(machine: Machine, tmp_path: Path) -> None:
    helped, lost = json.dumps([["a" + "0" * 15, 0], []]), json.dumps([["a" + "0" * 15, 1], []])
    machine.noise = {helped: [1.3, 1.0, 1.01], lost: [1.0, 1.2, 1.5]}
    Collector(settings(), tmp_path).run()
    by_schedule = {r.schedule: r for r in read_records(tmp_path)}
    assert by_schedule[helped].extra["samples_per_visit"] == "10,10,10"
    assert by_schedule[helped].latency_s == 1e-3 and not by_schedule[helped].flagged
    assert by_schedule[lost].flagged and by_schedule[lost].spread == pytest.approx(0.2)
    assert machine.visits.count(helped) == machine.visits.count(lost) == 3


def test_phases_are_announced(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    progress_file = tmp_path / "set" / ".progress.json"
    answer = machine.answer

    def spy(message: dict[str, Any]) -> dict[str, Any]:
        seen.append(message["op"] + "/" + json.loads(progress_file.read_text())["phase"])
        return answer(message)

    monkeypatch.setattr(machine, "answer", spy)
    Collector(settings(), tmp_path / "set").run()
    assert set(seen) == {"import/sample", "sample/sample", "build/build", "time/measure"}
    assert json.loads(progress_file.read_text()) == {"phase": "done", "done": ALL, "total": ALL}


def test_time_limit_starts_no_new_batch_but_finishes_what_is_begun(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """One second a visit."""

        sleep = staticmethod(lambda seconds: None)
        monotonic = staticmethod(lambda: float(len(machine.visits)))

    for place in (collection, window):
        monkeypatch.setattr(place, "time", Clock)
    Collector(settings(time_limit_min=8.0 / 60), tmp_path).run()
    records = read_records(tmp_path)
    assert 0 < len(records) < ALL
    assert all(r.extra["samples_per_visit"] == "10,10" for r in records)


def test_another_device_measures_the_tasks_or_the_very_schedules_of_the_first(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(budget=12), tmp_path / "first").run()
    first, asked = read_records(tmp_path / "first"), machine.samples_asked
    other = settings(device="xeon-icelake-avx2", schedules_from=tmp_path / "first")
    Collector(other, tmp_path / "pairs").run()
    pairs = read_records(tmp_path / "pairs", "xeon-icelake-avx2")
    assert machine.samples_asked == asked, "nothing is sampled"
    assert {(r.task_id, r.schedule) for r in pairs} == {(r.task_id, r.schedule) for r in first}
    assert not {r.record_id for r in pairs} & {r.record_id for r in first}
    Collector(settings(tasks_from=tmp_path / "first"), tmp_path / "shared").run()
    shared = read_records(tmp_path / "shared")
    assert {r.task_id for r in shared} == {r.task_id for r in first} and machine.samples_asked > asked


def test_given_programs_are_measured_beside_those_recorded(machine: Machine, tmp_path: Path) -> None:
    Collector(settings(), tmp_path / "set").run()
    before, asked = {r.record_id for r in read_records(tmp_path / "set")}, machine.samples_asked
    Collector(settings(programs="untuned"), tmp_path / "set").run()
    untuned = [r for r in read_records(tmp_path / "set") if r.record_id not in before]
    assert machine.samples_asked == asked and len({r.task_id for r in untuned}) == len(untuned) == 10
    assert {r.schedule for r in untuned} == {"[[],[]]"}
    lines = tmp_path / "programs.jsonl"
    lines.write_text(json.dumps([untuned[0].task_id, "[[],[[]]]"]) + "\n")
    Collector(settings(programs=str(lines)), tmp_path / "set").run()
    assert len(read_records(tmp_path / "set")) == ALL + 11


def test_programs_that_are_no_lines_of_schedules_are_refused(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(CdmppError, match="programs=nowhere: no such file; give untuned"):
        Collector(settings(programs="nowhere"), tmp_path / "set").run()
    (tmp_path / "p.jsonl").write_text('{"task": 1}\n')
    with pytest.raises(CdmppError, match=r"each line is \[task id, schedule\]"):
        Collector(settings(programs=str(tmp_path / "p.jsonl")), tmp_path / "set").run()

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdmpp.data.records import append_records, write_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure.plan import add_tasks, copy_plan, interleave, load_plan, schedule_seed
from cdmpp.programs.task import Task


def task(name: str, network: str) -> Task:
    return Task(name, name, "elementwise", "text", 1.0, 1.0, {network: 1}, "torch")


def test_networks_take_turns_and_no_task_comes_twice() -> None:
    order = interleave({"a": ["1", "2", "3", "4"], "b": ["3", "5"]}, seed=0)
    assert sorted(order) == ["1", "2", "3", "4", "5"]
    assert {order[0], order[1]} & {"5", "3"}
    assert order == interleave({"b": ["3", "5"], "a": ["1", "2", "3", "4"]}, seed=0)


def test_a_rerun_imports_new_networks_only_and_keeps_the_order(tmp_path: Path) -> None:
    asked: list[str] = []

    def importer(name: str, spec: Mapping[str, Any]) -> list[Task] | None:
        asked.append(name)
        return None if name == "broken" else [task(f"{name}{i}", name) for i in range(3)] + [task("shared", name)]

    first = load_plan(tmp_path, {"a": {}, "broken": {}}, 0, importer)
    assert first.networks == ["a"] and len(first.order) == 4
    begun = first.order[:2]
    second = load_plan(tmp_path, {"a": {}, "b": {}, "broken": {}}, 0, importer, begun)
    assert asked == ["a", "broken", "b", "broken"]
    assert second.order[:2] == begun and len(set(second.order)) == len(second.order) == 7
    assert any(key.startswith("b") for key in second.order[2:5]), "the new network waits for nobody"
    third = load_plan(tmp_path, {"a": {}, "b": {}}, 0, importer, [])
    assert third.order == second.order
    assert second.tasks["shared"].networks == {"a": 1, "b": 1}


def record(task_id: str) -> Record:
    return Record(f"r{task_id}", task_id, "xeon-icelake", "{}", "[[],[]]", (1e-3,), 1e-3, "min", protocol="cpu-v1")


def test_a_second_device_takes_the_measured_tasks_of_the_first(tmp_path: Path) -> None:
    source, folder = tmp_path / "first", tmp_path / "second"
    write_tasks(source, [task("1", "a"), task("2", "a"), task("3", "b"), task("4", "b")])
    append_records(source, [record("1"), record("3")])
    first = copy_plan(folder, source, 0)
    assert sorted(first.order) == ["1", "3"] and first.networks == ["a", "b"]
    append_records(source, [record("2")])
    second = copy_plan(folder, source, 0)
    assert second.order == [*first.order, "2"] and second.tasks["2"].networks == {"a": 1}
    with pytest.raises(DataError, match="measure there first"):
        copy_plan(folder, tmp_path / "empty", 0)


def test_seeds_differ_between_tasks_and_fit_the_sampler() -> None:
    seeds = {schedule_seed(f"{i:016x}", 0) for i in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**31 for seed in seeds)
    assert schedule_seed("a", 0) == schedule_seed("a", 0) != schedule_seed("a", 1)


def test_added_tasks_come_behind_the_planned_ones_and_bar_no_network(tmp_path: Path) -> None:
    add_tasks(tmp_path, [task("t2", "a"), task("t1", "a")])
    add_tasks(tmp_path, [task("t1", "a"), task("t3", "b")])
    plan = load_plan(tmp_path, {}, 0, lambda name, spec: pytest.fail("imported"))
    assert plan.order == ["t2", "t1", "t3"] and plan.networks == [] and set(plan.tasks) == {"t1", "t2", "t3"}
    whole = load_plan(tmp_path, {"a": {}}, 0, lambda name, spec: [task("t4", name)], {"t2"})
    assert whole.networks == ["a"] and "t4" in whole.order

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.measure.plan import interleave, load_plan, schedule_seed
from cdmpp.programs.task import Task


def task(name: str, network: str) -> Task:
    return Task(name, name, "elementwise", "text", 1.0, 1.0, {network: 1}, "torch")


def test_networks_take_turns_and_no_task_comes_twice() -> None:
    order = interleave({"a": ["1", "2", "3", "4"], "b": ["3", "5"]}, {"2"}, seed=0)
    assert sorted(order) == ["1", "3", "4", "5"]
    assert {order[0], order[1]} & {"5", "3"}
    assert order == interleave({"b": ["3", "5"], "a": ["1", "2", "3", "4"]}, {"2"}, seed=0)


def test_a_rerun_imports_new_networks_only_and_keeps_the_order(tmp_path: Path) -> None:
    asked: list[str] = []

    def importer(name: str, spec: Mapping[str, Any]) -> list[Task] | None:
        asked.append(name)
        return None if name == "broken" else [task(f"{name}{i}", name) for i in range(3)] + [task("shared", name)]

    first = load_plan(tmp_path, {"a": {}, "broken": {}}, 0, importer)
    assert first.networks == ["a"] and len(first.order) == 4
    second = load_plan(tmp_path, {"a": {}, "b": {}, "broken": {}}, 0, importer)
    assert asked == ["a", "broken", "b", "broken"]
    assert second.order[:4] == first.order and len(second.order) == 7
    assert second.tasks["shared"].networks == {"a": 1, "b": 1}


def test_seeds_differ_between_tasks_and_fit_the_sampler() -> None:
    seeds = {schedule_seed(f"{i:016x}", 0) for i in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**31 for seed in seeds)
    assert schedule_seed("a", 0) == schedule_seed("a", 0) != schedule_seed("a", 1)

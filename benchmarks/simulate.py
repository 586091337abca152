"""Tasks a CPU second of the event engine, next to its readable reference in Python and networkx's longest path."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
from timing import finish

from cdmpp.simulate import Flow, Task, simulate
from cdmpp.simulate.task_columns import TaskColumns

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from reference.engine import simulate as by_reference  # noqa: E402

TASKS, QUEUES, ROUNDS = 1_000_000, 8, 3
FLOWING = 100_000
RATES = {f"link {number}": 1e9 for number in range(QUEUES)}


def chain() -> list[Task]:
    return [Task(f"t{i}", 1e-6 * (1 + i % 7), ("a",), (f"t{i - 1}",) if i else ()) for i in range(TASKS)]


def layers(count: int = TASKS, share: int = 0) -> list[Task]:
    """Every task waits for two of the layer before; where a ``share`` is given, one of so many sends over two links."""
    tasks = []
    for i in range(count):
        above = i // QUEUES * QUEUES - QUEUES
        after = (f"t{above + i % QUEUES}", f"t{above + (i + 3) % QUEUES}") if above >= 0 else ()
        crossed = f"link {i % QUEUES}", f"link {(i + 3) % QUEUES}"
        flow = Flow(1e3 * (1 + i % 5), crossed) if share and i % share == 0 else None
        tasks.append(Task(f"t{i}", 1e-6 * (1 + i % 7), (f"q{i % QUEUES}",), after, flow=flow))
    return tasks


def longest(tasks: list[Task]) -> float:
    graph = nx.DiGraph()
    graph.add_nodes_from(task.key for task in tasks)
    for task in tasks:
        graph.add_edges_from((name, task.key, {"weight": task.duration}) for name in task.after)
    return float(nx.dag_longest_path_length(graph))


def rate(tasks: list[Task], action: Callable[[], Any], rounds: int) -> float:
    """Tasks a CPU second of the fastest round."""
    spent = []
    for _ in range(rounds):
        begun_s = time.process_time()
        action()
        spent.append(time.process_time() - begun_s)
    return len(tasks) / min(spent)


def row(name: str, tasks: list[Task], knows_flows: bool = True) -> dict[str, Any]:
    columns = TaskColumns.of(tasks)
    assert simulate(columns, rates=RATES).makespan_s == by_reference(tasks, rates=RATES).makespan_s
    found = {
        "engine": rate(tasks, lambda: simulate(columns, rates=RATES), ROUNDS),
        "ours": rate(tasks, lambda: simulate(tasks, rates=RATES), ROUNDS),
        "reference": rate(tasks, lambda: by_reference(tasks, rates=RATES), 1),
    }
    if knows_flows:
        found["networkx"] = rate(tasks, lambda: longest(tasks), 1)
    return {"graph": name, "tasks": len(tasks), **found}


def main() -> None:
    finish(
        [
            row("chain", chain()),
            row("layers", layers()),
            row("layers, a task in four sends over shared links", layers(FLOWING, 4), knows_flows=False),
        ]
    )


if __name__ == "__main__":
    main()

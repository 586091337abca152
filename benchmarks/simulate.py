"""Tasks a second of the event engine, on graphs of a hundred thousand tasks."""

from __future__ import annotations

import networkx as nx
from timing import best_seconds, finish

from cdmpp.simulate.engine import simulate
from cdmpp.simulate.task import Task

TASKS, QUEUES, ROUNDS = 100_000, 8, 3


def chain() -> list[Task]:
    return [Task(f"t{i}", 1e-6 * (1 + i % 7), ("a",), (f"t{i - 1}",) if i else ()) for i in range(TASKS)]


def layers() -> list[Task]:
    tasks = []
    for i in range(TASKS):
        above = i // QUEUES * QUEUES - QUEUES
        after = (f"t{above + i % QUEUES}", f"t{above + (i + 3) % QUEUES}") if above >= 0 else ()
        tasks.append(Task(f"t{i}", 1e-6 * (1 + i % 7), (f"q{i % QUEUES}",), after))
    return tasks


def longest(tasks: list[Task]) -> float:
    graph = nx.DiGraph()
    graph.add_nodes_from(task.key for task in tasks)
    for task in tasks:
        graph.add_edges_from((name, task.key, {"weight": task.duration}) for name in task.after)
    return float(nx.dag_longest_path_length(graph))


def main() -> None:
    rows = []
    for name, tasks in (("chain", chain()), ("layers", layers())):
        actions = {"ours": lambda tasks=tasks: simulate(tasks), "networkx": lambda tasks=tasks: longest(tasks)}
        seconds = best_seconds(actions, ROUNDS)
        rows.append({"graph": name, "tasks": len(tasks), **{key: len(tasks) / value for key, value in seconds.items()}})
    finish(rows)


if __name__ == "__main__":
    main()

"""Which programs are counted: recorded tasks of the zoo and kernels of odd sizes, for six CPUs that have no AVX-512.

Valgrind cannot run AVX-512.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.counts.kernels import KERNELS, TILED, kernel_task
from cdmpp.data.records import read_tasks
from cdmpp.programs.task import Program, Task

MCPUS = ("x86-64-v2", "haswell", "skylake", "znver2", "znver3", "alderlake")
TASKS = Path(__file__).parents[2] / "datasets" / "xeon-icelake"
UNTUNED, SAMPLED = "untuned", "sampled"
DRAWS = 3
"""Sampled schedules of a kernel on each CPU."""
MOST_OPERATIONS = 4e6
"""Of a recorded task: callgrind takes a second for about 20 million instructions."""


@dataclass(frozen=True)
class Case:
    """One program to be counted."""

    name: str
    """Of its task: an entry of ``KERNELS``, or the id of a recorded task."""
    op_class: str
    mcpu: str
    schedule: str
    """``UNTUNED``, or ``SAMPLED``: a schedule drawn at random."""
    draw: int = 0
    """Seed of the draw."""

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.name}|{self.mcpu}|{self.schedule}|{self.draw}"


def cases(recorded: int, seed: int = 0) -> list[Case]:
    """All kernels on all CPUs, untuned and ``DRAWS`` times sampled, and ``recorded`` tasks, as many of each class."""
    schedules = [(UNTUNED, 0), *((SAMPLED, draw) for draw in range(DRAWS))]
    found = [
        Case(name, KERNELS[name][0], mcpu, schedule, draw)
        for name in KERNELS
        for mcpu in MCPUS
        for schedule, draw in schedules
    ]
    found += [Case(TILED, "elementwise", mcpu, UNTUNED) for mcpu in MCPUS]
    by_class: defaultdict[str, list[str]] = defaultdict(list)
    for task in read_tasks(TASKS).values():
        if task.flops < MOST_OPERATIONS and task.io_bytes < MOST_OPERATIONS:
            by_class[task.op_class].append(task.task_id)
    generator = random.Random(seed)
    for i in range(recorded):
        op_class = sorted(by_class)[i % len(by_class)]
        task = generator.choice(sorted(by_class[op_class]))
        schedule = UNTUNED if generator.random() < 0.3 else SAMPLED
        found.append(Case(task, op_class, generator.choice(MCPUS), schedule, generator.randrange(1000)))
    unique = list({case.key: case for case in found}.values())
    generator.shuffle(unique)  # a part of them is a fair sample
    return unique


def task_of(case: Case) -> Task:
    """The task of a case."""
    return kernel_task(case.name) if case.name in KERNELS or case.name == TILED else read_tasks(TASKS)[case.name]


def program_of(case: Case) -> Program:
    """The program of a case, for its CPU."""
    import tvm

    from cdmpp.programs.sampling import default_program, sample_programs

    task, target = task_of(case), {"kind": "llvm", "mcpu": case.mcpu, "num-cores": 2}
    if case.name == TILED:
        return Program(tvm.script.from_source(task.workload), tvm.target.Target(target))
    if case.schedule == UNTUNED:
        return default_program(task, target)
    return sample_programs(task, target, 3, case.draw, mutants=0.0)[-1]

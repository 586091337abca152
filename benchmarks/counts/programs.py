"""Which programs are counted: recorded tasks of the zoo and of training, and kernels of odd sizes, for all x86-64 CPUs.

Schedules that a tuner draws differ by processor; TVM compiles each for its own.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.counts.kernels import KERNELS, TILED, kernel_task
from cdmpp.data.records import read_tasks
from cdmpp.programs.task import Program, Task

MCPUS = (
    *("x86-64-v2", "haswell", "broadwell", "skylake", "alderlake", "znver2", "znver3"),
    *("skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "znver4", "znver5"),
)
"""The last six have AVX-512."""
ARM_MCPUS = ("neoverse-n1",)
"""Processors of AArch64, which qemu emulates."""
DATASETS = Path(__file__).parents[2] / "datasets"
INFERENCE, TRAINING = "xeon-icelake", "epyc-genoa-training"
"""Measured data that tasks are taken from."""
UNTUNED, SAMPLED = "untuned", "sampled"
DRAWN = 3
"""Schedules that are drawn together."""
MOST_OPERATIONS = 2e7
"""Most operations of a recorded task."""


@dataclass(frozen=True)
class Case:
    """One program to be counted."""

    name: str
    """Name of its task: an entry of ``KERNELS``, or the id of a recorded task."""
    op_class: str
    origin: str
    """``kernel``, or the data set of a recorded task."""
    mcpu: str
    schedule: str
    """``UNTUNED``, or ``SAMPLED``: a schedule drawn at random."""
    draw: int = 0
    """Seed of the draw."""
    place: int = 0
    """Which of the ``DRAWN``."""

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.name}|{self.mcpu}|{self.schedule}|{self.draw}|{self.place}"

    @property
    def group(self) -> str:
        """What is drawn together."""
        return f"{self.name}|{self.mcpu}|{self.schedule}|{self.draw}"

    @property
    def arm(self) -> bool:
        """True for AArch64."""
        return self.mcpu in ARM_MCPUS


def cases(recorded: int, arm: int, seed: int = 0) -> list[Case]:
    """All kernels on all CPUs, and groups of ``recorded`` tasks, as many of each class; of AArch64 ``arm`` groups."""
    generator = random.Random(seed)
    found: list[Case] = []

    def add(name: str, op_class: str, origin: str, mcpu: str, schedule: str) -> None:
        draw = generator.randrange(1000) if schedule == SAMPLED else 0
        places = range(DRAWN if schedule == SAMPLED else 1)
        found.extend(Case(name, op_class, origin, mcpu, schedule, draw, place) for place in places)

    for name, (op_class, _, _) in KERNELS.items():
        for i, mcpu in enumerate(MCPUS):
            add(name, op_class, "kernel", mcpu, UNTUNED)
            if (len(found) + i) % 3 == 0:
                add(name, op_class, "kernel", mcpu, SAMPLED)
    found += [Case(TILED, "elementwise", "kernel", mcpu, UNTUNED) for mcpu in MCPUS]
    pools = _pools()
    kinds = sorted(pools)
    for i in range(recorded + arm):
        op_class, origin = kinds[i % len(kinds)]
        task = generator.choice(sorted(pools[op_class, origin]))
        schedule = UNTUNED if generator.random() < 0.4 else SAMPLED
        add(task, op_class, origin, generator.choice(MCPUS if i < recorded else ARM_MCPUS), schedule)
    unique = {case.key: case for case in found}
    groups = [list(group) for _, group in groupby(unique.values(), key=lambda case: case.group)]
    generator.shuffle(groups)  # a part of them is a fair sample
    return [case for group in groups for case in group]


def _pools() -> dict[tuple[str, str], list[str]]:
    """Class and data set -> ids of the recorded tasks that are small enough."""
    pools: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for origin in (INFERENCE, TRAINING):
        for task in recorded_tasks(origin).values():
            if task.flops < MOST_OPERATIONS and task.io_bytes < MOST_OPERATIONS:
                pools[task.op_class, origin].append(task.task_id)
    return dict(pools)


def pool_sizes() -> dict[tuple[str, str], int]:
    """Class and data set -> how many recorded tasks are small enough."""
    return {pool: len(tasks) for pool, tasks in _pools().items()}


@functools.cache
def recorded_tasks(origin: str) -> dict[str, Task]:
    """The tasks of a data set."""
    return dict(read_tasks(DATASETS / origin))


def task_of(case: Case) -> Task:
    """The task of a case."""
    return kernel_task(case.name) if case.origin == "kernel" else recorded_tasks(case.origin)[case.name]


def programs_of(group: Sequence[Case]) -> Iterator[tuple[Case, Program]]:
    """The programs of cases that are drawn together; fewer where there are fewer schedules."""
    import tvm

    from cdmpp.programs.sampling import default_program, sample_programs

    first = group[0]
    target: dict[str, Any] = {"kind": "llvm", "mcpu": first.mcpu, "num-cores": 2}
    if first.arm:
        target["mtriple"] = "aarch64-linux-gnu"
    task = task_of(first)
    if first.name == TILED:
        found = [Program(tvm.script.from_source(task.workload), tvm.target.Target(target))]
    elif first.schedule == UNTUNED:
        found = [default_program(task, target)]
    else:
        found = sample_programs(task, target, DRAWN, first.draw, mutants=0.0)
    for case in group:
        if case.place < len(found):
            yield case, found[case.place]

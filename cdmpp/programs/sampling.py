"""Schedules for a task: random MetaSchedule traces and mutants of them, every one a different program."""

from __future__ import annotations

import json
import logging
from typing import Any

from cdmpp.programs.intrinsics import intrinsics_for
from cdmpp.programs.task import Program, Task

NO_SCHEDULE = "[[],[]]"
"""The trace that does nothing: the program of an untuned task on a CPU."""
MUTANT_SHARE = 0.25
"""Share of measured programs that come from evolutionary search under a random cost model."""


def sample_programs(task: Task, target: Any, n: int, seed: int, mutants: float = MUTANT_SHARE) -> list[Program]:
    """Sample up to ``n`` structurally distinct scheduled programs; the same arguments give the same ones.

    Many elementwise tasks have a single CPU schedule and yield one program. ``target`` is a ``tvm.target.Target``
    or its dict. ``mutants``: share that are mutated; they take four times as long.
    """
    import tvm_ffi
    from tvm.s_tir import meta_schedule

    from cdmpp.programs.replay import parse_target, parse_workload

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    target = parse_target(target)
    module = parse_workload(task.workload)
    n_mutants = int(n * mutants) if n >= 4 else 0
    programs: dict[int, Program] = {}
    n_random = int((n - n_mutants) * 1.25) + 1

    def collect(strategy: Any, candidates: int, seed: int, limit: int, first: int | None = None) -> None:
        for schedule in _schedules(module, target, strategy, candidates, seed, first):
            key = int(tvm_ffi.structural_hash(schedule.mod))
            if len(programs) < limit and key not in programs:
                programs[key] = Program(schedule.mod, target, task.task_id, trace_json(schedule), task.op_name)

    if str(target.kind.name) == "llvm":  # a GPU refuses most draws: there the first are hardly ever enough
        collect("replay-trace", n_random, seed, n - n_mutants, first=n - n_mutants)
    if len(programs) < n - n_mutants:  # some are equal: the same draws again, and those behind them
        collect("replay-trace", n_random, seed, n - n_mutants)
    if n_mutants and len(programs) > 1:
        evolution = meta_schedule.search_strategy.EvolutionarySearch(
            population_size=16, init_measured_ratio=0.0, init_min_unmeasured=16, genetic_num_iters=1
        )
        collect(evolution, 2 * n_mutants, seed + 1, n)
    if 1 < len(programs) < n:
        collect("replay-trace", n_random, seed + 2, n)
    return list(programs.values())


def default_program(task: Task, target: Any) -> Program:
    """Return the program that TVM runs untuned: plain loops on a CPU, its default schedule (dlight) on a GPU."""
    import tvm

    from cdmpp.programs.replay import parse_target, parse_workload

    target, module = parse_target(target), parse_workload(task.workload)
    if str(target.kind.name) == "llvm":
        return Program(module, target, task.task_id, NO_SCHEDULE, task.op_name)
    from tvm.s_tir import dlight

    rules = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Fallback)
    own = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs)  # dlight schedules in place
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*(rule() for rule in rules))(own)
    assert isinstance(scheduled, tvm.IRModule)
    return Program(scheduled, target, task.task_id, scheduled.script(), task.op_name)


def trace_json(schedule: Any) -> str:
    """Write ``[instructions, decisions]`` of a schedule as JSON; replaying it on the task gives the same program."""
    return json.dumps(_plain(schedule.trace.as_json()), separators=(",", ":"))


def _schedules(module: Any, target: Any, strategy: Any, n: int, seed: int, first: int | None = None) -> list[Any]:
    """Schedules of one run of ``n`` draws; ``first``: only so many of them."""
    from tvm.s_tir import meta_schedule

    # One thread: with more, which thread draws which candidate is left to chance.
    with intrinsics_for(target):
        context = meta_schedule.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy=strategy,
            task_name="sample",
            num_threads=1,
            rand_state=seed % (2**31 - 2) + 1,
        )
    spaces, database = context.generate_design_space(), meta_schedule.database.MemoryDatabase()
    model = meta_schedule.cost_model.RandomModel(seed=seed % (2**31))
    context.pre_tuning(n, first or n, design_spaces=spaces, database=database, cost_model=model)
    candidates = context.generate_measure_candidates() or ()
    context.post_tuning()
    return [candidate.sch for candidate in candidates]


def _plain(value: Any) -> Any:
    """TVM containers and boxed numbers as plain Python ones."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "value"):
        return _plain(value.value)
    return [_plain(item) for item in value]

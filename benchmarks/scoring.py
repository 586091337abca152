"""Candidates a second of our cost model beside MetaSchedule's XGBModel, and where our time goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.timing import finish
from benchmarks.workloads import TARGETS, tasks
from cdmpp.programs.sampling import sample_programs
from cdmpp.programs.task import Task

CANDIDATES = 512
_TRAINED_ON, _TURNS = 128, 3


def measure() -> list[dict[str, Any]]:
    """Scores of 512 candidates each, both models trained on 128 of them, in turns, best of three."""
    from cdmpp import devices
    from cdmpp.programs.replay import parse_target

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    return [
        {"target": kind, "task": name, **_row(tasks()[name], device, parse_target(devices.get(device).target))}
        for kind, device in TARGETS.items()
        for name in ("conv2d", "matmul", "softmax")
    ]


def _row(task: Task, device: str, target: Any) -> dict[str, Any]:
    import tvm_ffi
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.cost_model import XGBModel

    import cdmpp
    from cdmpp.ast.lowering import lower
    from cdmpp.ast.native import summarize
    from cdmpp.ast.scheduled import extract_scheduled, extract_scheduled_many
    from cdmpp.ast.table import AstTable
    from cdmpp.platform.cores import cores
    from cdmpp.programs.replay import parse_workload

    modules = [program.module for program in sample_programs(task, target, CANDIDATES, seed=0, mutants=0.0)]
    candidates = [ms.MeasureCandidate(Schedule(module), []) for module in modules]
    context = ms.TuneContext(mod=parse_workload(task.workload), target=target, num_threads=cores())
    results = [ms.runner.RunnerResult([1e-3 * (1 + i % 17)], None) for i in range(_TRAINED_ON)]
    trees, ours = XGBModel(num_tuning_cores=cores()), cdmpp.make_cost_model(device, two_stage=False)._inst
    for model in (trees, ours):
        model.update(context, candidates[:_TRAINED_ON], results)
    scorer, learner = ours.two_stage.scorer, ours.two_stage.fast

    def read() -> list[Any]:
        return extract_scheduled_many(modules, target, cores())

    def cold() -> None:
        scorer.forget()
        ours.predict(context, candidates)

    asts = AstTable.from_asts(read())
    features, _ = scorer.scored(asts)
    turns = [(_timed(lambda: trees.predict(context, candidates)), _timed(cold)) for _ in range(_TURNS)]
    xgb_s, ours_s = (min(column) for column in zip(*turns, strict=True))
    hash_s = _timed(lambda: [tvm_ffi.structural_hash(module) for module in modules])
    again_s = min(_timed(lambda: ours.predict(context, candidates)) for _ in range(2))
    return {
        "candidates": len(modules),
        "xgb_s": xgb_s,
        "ours_s": ours_s,
        "hash_s": hash_s,
        "read_s": _timed(read),
        "judge_s": _timed(lambda: scorer.scored(asts)),
        "learned_s": _timed(lambda: learner.expected(features, "task")),
        "again_s": again_s,
        "lower_ms": 1e3 * _each(lambda module: summarize(lower(module, target), False), modules[:48]),
        "read_ms": 1e3 * _each(lambda module: extract_scheduled(module, target), modules[:48]),
    }


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _each(run: Callable[[Any], Any], modules: Sequence[Any]) -> float:
    return float(np.mean([_timed(partial(run, module)) for module in modules]))


if __name__ == "__main__":
    finish(measure())

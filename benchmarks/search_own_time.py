"""Measure what a search takes beside its measuring, and what of it the cost model takes: predicting and learning.

Called as ``python benchmarks/search_own_time.py RESULT.json [TASK,TASK [TRIALS]]`` by ``run.py``. Programs are neither
built nor run: their seconds are made up from their structural hash, the same for all models, so that each search has
the seconds of TVM's search and of its cost model alone. Each search has a process of its own. ``CDMPP_BASELINE`` names
an older checkout, with its compiled extension, whose model is asked too where it is set.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.search_tasks import named_tasks
from benchmarks.timing import finish

DEVICE, SEED = "epyc-genoa", 1
TRIALS, BATCH = 192, 16
"""XGBModel scores at random until it has seen ``WARM_UP``: fewer trials would say nothing about it."""
SEARCHES = (("matmul", TRIALS), ("softmax", TRIALS), ("matmul", 512))
"""Task and trials: XGBModel judges 42 % of the candidates of 192 trials, of 512 most of them."""
WARM_UP = 100
MODELS = ("random", "xgb", "online")
"""Scores at random, which cost nothing; that of MetaSchedule; ours by ASTs alone, which learns and compiles nothing."""
STAGES = {
    "key": ("cdmpp.tuning.cost_model:_modules",),
    "read": ("cdmpp.tuning.scorer:extract_scheduled_many",),
    "pool": ("cdmpp.tuning.scorer:with_devices",),
    "judge": ("cdmpp.model.ranker:Ranker.forward", "cdmpp.model.compiled_ranker:CompiledRanker.scores"),
    "residual": ("cdmpp.tuning.learner:Learner.expected",),
}
"""Stage of our model -> the functions that take it, in this build and in older ones."""


def main() -> None:
    """Search each task with each model, in turns."""
    if sys.argv[2:3] == ["--one"]:
        finish(own_time(*sys.argv[3:5], *map(int, sys.argv[5:7])))
        return
    names, trials = sys.argv[2:3], int((sys.argv[3:4] or [TRIALS])[0])
    searches = [(name, trials) for name in names[0].split(",")] if names else SEARCHES
    rows: list[dict[str, Any]] = []
    for name, trials in searches:
        rows.append({"task": name, "seed": SEED, "trials": trials, "batch": BATCH, "warm_up": WARM_UP})
        for model in MODELS if len(rows) == 1 else MODELS[1:]:  # what TVM's search takes alone, the first shows
            rows[-1][model] = _in_process(name, model, SEED, trials)
        if older := os.environ.get("CDMPP_BASELINE"):
            rows[-1]["older"] = _in_process(name, "online", SEED, trials, checkout=older)
    finish(rows)


def _in_process(*words: Any, checkout: str = "") -> Any:
    environment = {**os.environ, **({"PYTHONPATH": checkout} if checkout else {})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, __file__, str(path), "--one", *map(str, words)]
        subprocess.run(command, check=True, env=environment, cwd=folder)
        return json.loads(path.read_text())


class Spent:
    """Seconds that parts of a search took: of the processors, all threads together, and of the wall."""

    def __init__(self) -> None:
        self.cpu_s = dict.fromkeys(("search", "predict", "learn", "measure"), 0.0)
        self.wall_s = dict(self.cpu_s)
        self.stages = dict.fromkeys(STAGES, 0.0)
        """Of the processors, inside ``predict`` and ``update``."""
        self.scored = self.judged = self.measured = 0
        """Candidates: all, those that a model judged and did not score at random, and those that were measured."""

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what runs inside."""
        start = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu_s[part] += time.process_time() - start[0]
            self.wall_s[part] += time.perf_counter() - start[1]

    def watch(self) -> None:
        """Count the stages of our model from now on."""
        for stage, places in STAGES.items():
            for module, _, names in (place.partition(":") for place in places):
                if not find_spec(module):
                    continue
                *outer, last = names.split(".")
                holder = functools.reduce(lambda one, name: getattr(one, name, None), outer, import_module(module))
                if run := getattr(holder, last, None):
                    setattr(holder, last, self._counted(stage, run))

    def _counted(self, stage: str, run: Any) -> Any:
        @functools.wraps(run)
        def counted(*given: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return run(*given, **options)
            finally:
                self.stages[stage] += time.process_time() - start

        return counted


def _judges(model: Any) -> bool:
    """Whether a model judges candidates by now: XGBModel asks itself the same."""
    if hasattr(model, "booster"):
        return model.booster is not None and model.data_size >= model.num_warmup_samples
    return hasattr(model, "two_stage")


def own_time(name: str, model_name: str, seed: int, trials: int) -> dict[str, Any]:
    """Search one task with one model."""
    import tvm_ffi
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel, RandomModel, XGBModel
    from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

    import cdmpp
    from cdmpp import devices
    from cdmpp.programs.intrinsics import intrinsics_for
    from cdmpp.programs.replay import parse_target, parse_workload

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
    sheet, task, spent = devices.get(DEVICE), named_tasks(DEVICE, name)[name], Spent()
    target = parse_target(sheet.target)
    made = {
        "online": lambda: cdmpp.make_cost_model(sheet, two_stage=False),
        "xgb": lambda: XGBModel(num_tuning_cores=2, num_warmup_samples=WARM_UP),
        "random": lambda: RandomModel(seed=seed),
    }[model_name]()
    model = getattr(made, "_inst", made)
    if model_name == "online":
        spent.watch()

    @derived_object
    class Timed(PyCostModel):
        def load(self, path: str) -> None: ...
        def save(self, path: str) -> None: ...

        def predict(self, context: Any, candidates: Any) -> Any:
            spent.scored += len(candidates)
            spent.judged += len(candidates) * _judges(model)
            with spent.on("predict"):
                return model.predict(context, candidates)

        def update(self, context: Any, candidates: Any, results: Any) -> None:
            spent.measured += len(candidates)
            with spent.on("learn"):
                model.update(context, candidates, results)

    @derived_object
    class Unbuilt(PyBuilder):
        def build(self, build_inputs: Any) -> Any:
            with spent.on("measure"):
                places = (f"{tempfile.mkdtemp()}/{tvm_ffi.structural_hash(one.mod)}" for one in build_inputs)
                return [BuilderResult(place, None) for place in places]

    @derived_object
    class Known(PyRunnerFuture):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return RunnerResult([self.seconds], None)

    @derived_object
    class Unrun(PyRunner):
        def run(self, runner_inputs: Any) -> Any:
            with spent.on("measure"):
                numbers = [int(Path(one.artifact_path).name) for one in runner_inputs]
                return [Known(1e-3 * (1 + number % 97)) for number in numbers]

    with tempfile.TemporaryDirectory() as folder, intrinsics_for(target), spent.on("search"):
        ms.tune_tir(
            parse_workload(task.workload), target, folder, trials, num_trials_per_iter=BATCH, builder=Unbuilt(),
            runner=Unrun(), cost_model=Timed(), num_tuning_cores=2, seed=seed,
        )  # fmt: skip
    counts = {"scored": spent.scored, "judged": spent.judged, "measured": spent.measured}
    return {"cpu_s": spent.cpu_s, "wall_s": spent.wall_s, "stages": spent.stages, **counts}


if __name__ == "__main__":
    main()
